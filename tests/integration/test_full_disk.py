"""Commands on a disk that is full: one line, exit code 1, and what was there stays whole.

The disk is a small tmpfs in a mount namespace of its own, which goes with its process.
"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny
from missing import missing

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document

UNSHARE = ["unshare", "--mount", "--map-root-user"]
# Arguments: size of the disk, where, what lies on it, where that goes afterwards, the command.
ON_SMALL_DISK = """
set -e
size=$1 disk=$2 before=$3 after=$4
shift 4
mount -t tmpfs -o size=$size tmpfs "$disk"
cp -R "$before/." "$disk"
code=0
"$@" || code=$?
cp -R "$disk/." "$after"
exit $code
"""


@pytest.fixture(scope="module", autouse=True)
def can_mount(tmp_path_factory):
    disk = tmp_path_factory.mktemp("disk")
    command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", disk]
    if shutil.which("unshare") is None or subprocess.run(command).returncode:
        missing("this system lets nobody mount a tmpfs in a namespace of its own")


@pytest.fixture
def disk(tmp_path):
    """Runs a command on a disk that holds `tmp_path/before`; `tmp_path/after` is what is left."""
    for name in ("disk", "before", "after"):
        (tmp_path / name).mkdir()

    def run(size_kib, *command):
        places = [tmp_path / name for name in ("disk", "before", "after")]
        shell = [*UNSHARE, "sh", "-c", ON_SMALL_DISK, "sh", f"{size_kib}k", *places]
        tfde = [sys.executable, "-m", "tfde.cli.main", *command]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}  # stderr is ours alone
        done = subprocess.run(
            [*map(str, [*shell, *tfde])], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 1, done.stderr
        name = " ".join(command[: 2 if command[0] == "index" else 1])
        assert done.stderr.startswith(f"tfde {name}: {tmp_path / 'disk'}/")
        assert done.stderr.count("\n") == 1
        return done.stderr

    return run


def used_kib(path):
    """Pages of 4 KiB, as a tmpfs counts."""
    return sum(-(-file.stat().st_size // 4096) * 4 for file in path.rglob("*") if file.is_file())


def test_add_keeps_the_batches_before(tmp_path, disk):
    model = tiny.dual_encoder()
    model.save_to_preset(tmp_path / "model")
    first = [Document(f"d{n}", "", text) for n, text in enumerate(tiny.document_texts()[:50])]
    vectors = model.encode_documents(first)
    ids = [document.doc_id for document in first]
    index = ScannIndex.build(vectors, ids, fingerprint=model.fingerprint())
    index.save(tmp_path / "before/i")
    padding = " red" * 2500  # 10 KB; a batch of 32 needs 320 KB
    texts = [text + padding for text in tiny.document_texts()[50:250]]
    with (tmp_path / "new.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"_id": f"n{number}", "title": "", "text": text}) + "\n")
    error = disk(
        1000, "index", "add", tmp_path / "disk/i", "--model", tmp_path / "model", "--input",
        tmp_path / "new.jsonl", "--batch_size", 1,
    )  # fmt: skip
    assert "/i/changes.sqlite: cannot be read or written (" in error
    with LiveIndex.open(tmp_path / "after/i", write=True) as left:
        added = len(left.doc_ids) - 50
        assert added in (32, 64)
        assert left.doc_ids.tolist() == [*ids, *(f"n{number}" for number in range(added))]
        np.testing.assert_array_equal(left.vectors()[:50], vectors)
        shown = left.documents(left.doc_ids)
        assert [shown[f"n{number}"].text for number in range(added)] == texts[:added]
        left.delete(["n0"])  # and it can be changed again


@pytest.mark.parametrize("kind", [ExactIndex, ScannIndex])
def test_compact_leaves_index_and_changes(tmp_path, disk, kind):
    vectors = np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32)  # 768 KB
    path = tmp_path / "before/i"
    kind.build(vectors, [f"d{n}" for n in range(3000)], fingerprint="f").save(path)
    with LiveIndex.open(path, write=True) as index:
        index.add([Document("new", "", "text")], vectors[:1], fingerprint="f")
        index.delete(["d7"])
    error = disk(used_kib(path) + 500, "index", "compact", tmp_path / "disk/i")
    assert "No space left on device" in error or "ScaNN's files cannot be written" in error
    expected = LiveIndex.open(path)
    with LiveIndex.open(tmp_path / "after/i", write=True) as left:
        assert left.version == expected.version == "1.2"
        assert left.doc_ids.tolist() == expected.doc_ids.tolist()
        np.testing.assert_array_equal(left.vectors(), expected.vectors())
        assert not list((tmp_path / "after/i").glob("generations/*"))
        assert not list((tmp_path / "after/i").glob("generations/.*"))
        assert left.compact()


def test_export_leaves_nothing(tmp_path, disk):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    error = disk(160, "export", "--model", tmp_path / "model", "--output", tmp_path / "disk/b")
    assert "/b: cannot be written (" in error  # a bundle takes about 300 KiB
    assert "No space left on device" in error
    assert not list((tmp_path / "after").iterdir())
