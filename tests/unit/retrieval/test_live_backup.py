"""A copy of a live index is a state that it had, whatever goes on meanwhile."""

import threading

import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.faiss_index import FaissIndex
from tfde.retrieval.live.backup import back_up_index
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document

DIM, BASE = 4, 40


def vector(number):
    row = np.random.default_rng(number).normal(size=DIM)
    return (row / np.linalg.norm(row)).astype(np.float32)


@pytest.fixture(params=[ExactIndex, ScannIndex, FaissIndex])
def path(request, tmp_path):
    vectors = np.stack([vector(n) for n in range(BASE)])
    request.param.build(vectors, [f"d{n}" for n in range(BASE)]).save(tmp_path / "index")
    return tmp_path / "index"


def test_copies_under_changes_and_compactions(path, tmp_path):
    stop, failed = threading.Event(), []

    def change():
        try:
            with LiveIndex.open(path, write=True) as index:
                number = BASE
                while not stop.is_set():
                    index.add(
                        [Document(f"d{number}", "", f"text {number}")],
                        vector(number)[None],
                        fingerprint="",
                    )
                    number += 1
                    if number % 20 == 0:
                        index.compact()
        except Exception as error:
            failed.append(error)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        seen = set()
        for copy in range(8):
            output = tmp_path / f"copy{copy}"
            before = LiveIndex.open(path).status().sequence
            status = back_up_index(path, output)
            assert before <= status.sequence <= LiveIndex.open(path).status().sequence
            seen.add((status.generation, status.sequence))
            with LiveIndex.open(output, write=True) as index:  # it can be gone on with
                names = [f"d{n}" for n in range(BASE + status.sequence)]
                assert sorted(index.doc_ids) == sorted(names)
                last = names[-1]
                assert index.search(vector(len(names) - 1)[None], 1)[1][0, 0] == last
                if status.sequence:
                    text = f"text {len(names) - 1}"
                    assert index.documents([last]) == {last: Document(last, "", text)}
                index.delete([last])
    finally:
        stop.set()
        writer.join()
    assert not failed
    assert len(seen) > 4


def test_an_index_that_was_never_changed(path, tmp_path):
    assert back_up_index(path, tmp_path / "copy").documents == BASE
    names = sorted(f.relative_to(path) for f in path.rglob("*"))
    assert sorted(f.relative_to(tmp_path / "copy") for f in (tmp_path / "copy").rglob("*")) == names
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        back_up_index(path, tmp_path / "copy")
    with pytest.raises(FileNotFoundError, match=r"no index.json there"):
        back_up_index(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_copy_inside_of_the_index_is_refused(tmp_path):
    ExactIndex.build(np.eye(2, dtype=np.float32), ["a", "b"]).save(tmp_path / "i")
    with pytest.raises(ConfigError, match="`output` must be a directory outside of the index"):
        back_up_index(tmp_path / "i", tmp_path / "i" / "copy")
