"""`kill -9` in the middle of mining; the next run gives the file of an unbroken one."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny

MINE = """
import sys, time
from tfde.data.dataset_directory import DatasetDirectory
from tfde.negatives.candidate_sources import Bm25Candidates
from tfde.negatives.mine import mine_negatives
from tfde.config.negatives import MiningRules

class Slow(Bm25Candidates):
    def search(self, queries, k):
        time.sleep(float(sys.argv[3]))
        return super().search(queries, k)

rules = MiningRules(choice="sampled", max_rank=50, seed=3, relative_margin=0.1)
mine_negatives(DatasetDirectory(sys.argv[1]), Slow(), sys.argv[2], rules, queries_at_once=10)
"""


def start(data, output, pause):
    return subprocess.Popen([sys.executable, "-c", MINE, str(data), str(output), str(pause)])


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_killed_and_resumed_equals_unbroken(tmp_path, suffix):
    data = tiny.write_dataset(tmp_path / "data")
    unbroken, broken = tmp_path / f"unbroken{suffix}", tmp_path / f"broken{suffix}"
    assert start(data, unbroken, 0).wait(120) == 0
    parts = tmp_path / f"broken{suffix}.parts"
    for number in (3, 9):  # killed twice, each time in a later part
        process = start(data, broken, 0.2)
        deadline = time.monotonic() + 60
        while not (parts / f"part-{number:05d}.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert not broken.exists()
    finished = {file.name: file.stat().st_mtime_ns for file in parts.glob("part-*.json")}
    assert 10 <= len(finished) < 16
    (parts / ".part-00012.lines.0123456789ab.tmp.lines").write_bytes(b"half a part")
    (parts / ".documents.0123456789ab.tmp").mkdir()
    again = start(data, broken, 0.2)
    late = parts / "part-00013.json"  # two more parts come after it
    while again.poll() is None and not late.exists():
        time.sleep(0.005)
    assert late.exists()
    for name, written in finished.items():
        assert (parts / name).stat().st_mtime_ns == written
    assert again.wait(60) == 0
    assert (
        hashlib.sha256(broken.read_bytes()).digest()
        == hashlib.sha256(unbroken.read_bytes()).digest()
    )
    assert not parts.exists()
    assert (tmp_path / f"broken{suffix}.json").read_bytes() == (
        tmp_path / f"unbroken{suffix}.json"
    ).read_bytes()
