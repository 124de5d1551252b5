"""An index directory that another one takes the place of, while a reader has it open."""

import shutil

import numpy as np
import pytest

from tfde.errors import MismatchError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex
from tfde.types import Document

DIM = 6
FAR = np.eye(1, DIM, dtype=np.float32) * 100


def build(path, doc_ids, fingerprint="f"):
    vectors = np.zeros((len(doc_ids), DIM), np.float32)
    ExactIndex.build(vectors, doc_ids, fingerprint=fingerprint).save(path, overwrite=True)


def add(path, doc_id, vectors=FAR, fingerprint="f"):
    with LiveIndex.open(path, write=True) as index:
        index.add([Document(doc_id, "", doc_id)], vectors, fingerprint=fingerprint)


def first(reader, k=1):
    return reader.search_documents(FAR, k).doc_ids.tolist()[0]


def test_a_reader_never_mixes_two_indexes(tmp_path):
    """`build-index --overwrite` puts another first generation where a reader has the old one."""
    build(tmp_path / "i", ["d0", "d1"])
    reader, another = LiveIndex.open(tmp_path / "i"), LiveIndex.open(tmp_path / "i")
    build(tmp_path / "i", ["n0", "n1"])
    add(tmp_path / "i", "x")
    assert first(reader, 3) == ["x", "n0", "n1"]
    build(tmp_path / "i", ["n0", "n1"], "g")
    add(tmp_path / "i", "x", fingerprint="g")
    with pytest.raises(MismatchError, match=r"/i: holds another index now, made with model g and"):
        another.search_documents(FAR, 3)


@pytest.mark.parametrize("changes", [0, 1, 3])
def test_an_index_built_anew_takes_the_place_of_one_that_was_changed(tmp_path, changes):
    """Its log counts anew; the one that a reader has open is of a file that is gone."""
    build(tmp_path / "i", ["d0", "d1"])
    for number in range(changes):
        add(tmp_path / "i", f"old{number}")
    reader = LiveIndex.open(tmp_path / "i")
    first(reader)
    build(tmp_path / "i", ["n0", "n1"])
    assert first(reader, 9) == ["n0", "n1"]
    for number in (1, 2):
        add(tmp_path / "i", f"new{number}", number * FAR)
        assert (first(reader), reader.version) == ([f"new{number}"], f"1.{number}")
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert index.compact()
    assert (first(reader), reader.version) == (["new2"], "2.2")
    (tmp_path / "i").rename(tmp_path / "away")
    assert first(reader) == ["new2"]
    shutil.copytree(tmp_path / "away", tmp_path / "i")
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        index.delete(["new2"])
    assert first(reader) == ["new1"]
