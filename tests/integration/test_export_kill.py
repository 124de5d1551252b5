"""`kill -9` of `tfde export` and `tfde build-index`: nothing is there, or all of it."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny

from tfde.data.dataset_directory import DatasetDirectory
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.scann_index import ScannIndex
from tfde.storage.files import read_json, sha256

pytestmark = pytest.mark.kill


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    dataset = DatasetDirectory(tiny.write_dataset(directory / "data"))
    model = tiny.dual_encoder()
    model.save_to_preset(directory / "model")
    encode_corpus(model, list(dataset.documents()), directory / "e")
    return directory


def start(*args):
    command = [sys.executable, "-m", "tfde.cli.main", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(*args):
    with start(*args) as process:
        error = process.stderr.read()
    assert process.returncode == 0, error[-2000:]


def kill_when_there(output, name, *args):
    """Kills the command as soon as a file is in the directory that it fills."""
    before = set(output.parent.glob(f".{output.name}.*.tmp"))
    with start(*args) as process:
        while process.poll() is None:
            new = set(output.parent.glob(f".{output.name}.*.tmp")) - before
            if any((directory / name).exists() for directory in new):
                break
            time.sleep(0.0005)
        process.kill()
        return process.wait()


def assert_whole_bundle(path):
    manifest = read_json(path / "manifest.json")
    assert "models/retriever/1/saved_model.pb" in manifest["files"]
    for name, checksum in manifest["files"].items():
        assert sha256(path / name) == checksum


# The last is there when all is written and only flushing and renaming are left.
MOMENTS = ["", "models/retriever", "models/query_encoder/1/variables", "manifest.json"]


def test_a_killed_export_leaves_no_bundle_or_all_of_it(work, tmp_path):
    output = tmp_path / "b"
    export = ["export", "--model", work / "model", "--embeddings", work / "e", "--dataset",
              work / "data", "--scann", "false", "--output", output]  # fmt: skip
    for moment in MOMENTS:
        code = kill_when_there(output, moment, *export)
        if output.exists():  # it was renamed before the signal came
            assert moment == "manifest.json"
            assert_whole_bundle(output)
            output.rename(tmp_path / "whole")
        else:
            assert code == -signal.SIGKILL
    finish(*export)
    assert_whole_bundle(output)


def test_a_killed_build_leaves_the_old_index_or_the_new(work, tmp_path):
    output = tmp_path / "i"
    vectors = np.ones((3, 6), np.float32)
    ScannIndex.build(vectors, ["a", "b", "c"]).save(output)
    build = ["build-index", "--embeddings", work / "e", "--output", output, "--overwrite"]
    ids = list(Embeddings.open(work / "e").doc_ids)
    found = []
    for moment in ("doc_ids.txt", "index.json"):
        kill_when_there(output, moment, *build)
        found.append(list(ScannIndex.load(output).doc_ids))
        assert found[-1] in (["a", "b", "c"], ids)
    assert found[0] == ["a", "b", "c"]
    finish(*build)
    index = ScannIndex.load(output)
    assert list(index.doc_ids) == ids
    np.testing.assert_array_equal(index.vectors(), Embeddings.open(work / "e").read())
