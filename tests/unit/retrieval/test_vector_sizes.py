"""Vectors of which no score can be computed are refused wherever vectors come in."""

import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.retrieval.embeddings_writer import encode_finite
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.types import Document

ROWS, DIM = 600, 8
VECTORS = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
IDS = [f"d{i}" for i in range(ROWS)]


class Model:
    embedding_dim = DIM

    def __init__(self, vectors):
        self.vectors = vectors

    def encode_documents(self, documents, *, batch_size):
        return self.vectors


def with_row(value):
    vectors = VECTORS.copy()
    vectors[7, 3] = value
    return vectors


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes")
    exact = ExactIndex.build(VECTORS, IDS, fingerprint="f")
    exact.save(path / "i")
    scann = ScannIndex.build(VECTORS, IDS)
    with LiveIndex.open(path / "i", write=True) as live:
        yield exact, scann, live


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30, -1e30, 1.1e9])
def test_what_overflows_is_refused(indexes, value):
    _, scann, live = indexes
    vectors, message = (
        with_row(value),
        r"embeddings` must be at most 1e\+09 in size. Received: row 7",
    )
    documents = [Document(doc_id, "", "text") for doc_id in IDS]
    for take in (
        lambda: ExactIndex.build(vectors, IDS),
        lambda: ScannIndex.build(vectors, IDS),
        lambda: live.add(documents, vectors, fingerprint="f"),
        *(lambda index=index: index.search(vectors, 3) for index in indexes),
        lambda: scann.recall(3, query_embeddings=vectors),
    ):
        with pytest.raises(ConfigError, match=message):
            take()
    with pytest.raises(ConfigError, match=r"must be at most 1e\+09. Received: document 'd7'"):
        encode_finite(Model(vectors), documents, batch_size=8, dtype=np.dtype("float32"))
    assert live.status().sequence == 0


@pytest.mark.parametrize(
    "parameters",
    [
        ScannParameters(kind="exact"),
        ScannParameters(kind="hash"),
        ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=20),
    ],
)
def test_what_is_taken_is_found_by_scann(parameters):
    vectors = VECTORS * np.float32(1e8)
    index = ScannIndex.build(vectors, IDS, parameters=parameters)
    scores, found = index.search(vectors[:50], 10)
    assert np.isfinite(scores).all()
    exact = ExactIndex.build(vectors, IDS).search(vectors[:50], 10)[1]
    shared = [len(set(a) & set(b)) for a, b in zip(found, exact, strict=True)]
    assert np.mean(shared) > 9
