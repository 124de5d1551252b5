"""`kill -9` in the middle of encoding; the next run gives the files of an unbroken one."""

import os
import signal
import subprocess
import sys
import time

ENCODE = """
import hashlib, sys, time
import numpy as np
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.types import Document

class Encoder:
    embedding_dim = 8
    def fingerprint(self):
        return "f"
    def encode_documents(self, documents, *, batch_size):
        time.sleep(float(sys.argv[2]))
        rows = [hashlib.sha256(d.text.encode()).digest()[:8] for d in documents]
        return np.array([list(row) for row in rows], np.float32) / 255

documents = (Document(f"d{i}", "", f"text {i}") for i in range(4000))
encode_corpus(Encoder(), documents, sys.argv[1], shard_size=400, batch_size=4)
"""


def start(output, pause):
    return subprocess.Popen([sys.executable, "-c", ENCODE, str(output), str(pause)])


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def test_killed_and_resumed_equals_unbroken(tmp_path):
    assert start(tmp_path / "unbroken", 0).wait(60) == 0
    broken = tmp_path / "broken"
    for shards in (2, 5):  # killed twice, each time inside a later shard
        process = start(broken, 0.02)
        deadline = time.monotonic() + 60
        while not (broken / f"shard-{shards:05d}.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert not (broken / "embeddings.json").exists()
    finished = {file.name: file.stat().st_mtime_ns for file in broken.glob("shard-*.json")}
    assert 6 <= len(finished) < 10
    (broken / ".shard-00007.npy.0123456789ab.tmp.npy").write_bytes(b"half a shard")
    assert start(broken, 0).wait(60) == 0
    assert contents(broken) == contents(tmp_path / "unbroken")
    for name, written in finished.items():
        assert (broken / name).stat().st_mtime_ns == written
