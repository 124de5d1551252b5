"""Search by ordinary ops, against NumPy's stable sort in float64."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.export.exact_retriever import ExactRetriever, save_retriever
from tfde.export.saved_models import QueryEncoder

RNG = np.random.default_rng(7)
# Small integers: products are exact in float32, and ties are many.
EMBEDDINGS = RNG.integers(-2, 3, size=(103, 6)).astype(np.float32)
QUERIES = RNG.integers(-2, 3, size=(5, 6)).astype(np.float32)
DOC_IDS = [f"d{i}" for i in range(103)]


@pytest.fixture(scope="module")
def query_encoder():
    model = tiny.dual_encoder(embedding_dim=6)
    return QueryEncoder(model.query_tower, model.preprocessor)


def expected(k, queries=QUERIES):
    scores = queries.astype(np.float64) @ EMBEDDINGS.T.astype(np.float64)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


@pytest.mark.parametrize("block_rows", [1000, 103, 50, 20, 3])
@pytest.mark.parametrize("k", [1, 10, 60, 103, 500])
def test_search_is_exact_and_ties_go_by_position(query_encoder, block_rows, k):
    retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS, block_rows=block_rows)
    found = retriever.search(tf.constant(QUERIES), tf.constant(k))
    indices, scores = expected(k)
    np.testing.assert_array_equal(found["indices"], indices)
    np.testing.assert_array_equal(found["scores"], scores)


def test_no_queries(query_encoder):
    for block_rows in (1000, 20):
        retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS, block_rows=block_rows)
        found = retriever.search(tf.zeros([0, 6]), tf.constant(4))
        assert found["indices"].shape == (0, 4)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(query_encoder, k):
    retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`k` must be at least 1. Received:"):
        retriever.search(tf.constant(QUERIES), tf.constant(k))


@pytest.mark.parametrize("block_rows", [1000, 20])
def test_search_compiles_at_fixed_shapes(query_encoder, tmp_path, block_rows):
    retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS, block_rows=block_rows)
    save_retriever(retriever, tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for k in (1, 7):

        @tf.function(jit_compile=True)
        def search(queries, k=k):
            return loaded.signatures["search"](embeddings=queries, k=tf.constant(k))

        found = search(tf.constant(QUERIES))
        indices, scores = expected(k)
        np.testing.assert_array_equal(found["indices"], indices)
        np.testing.assert_array_equal(found["scores"], scores)
