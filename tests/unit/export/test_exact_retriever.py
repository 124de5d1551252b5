"""Search by ordinary ops, against NumPy's stable sort in float64."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.errors import ConfigError
from tfde.export.retriever import ExactRetriever, save_retriever
from tfde.towers.saved_models import QueryEncoder

RNG = np.random.default_rng(7)
# Small integers: products are exact in float32, and ties are many.
EMBEDDINGS = RNG.integers(-2, 3, size=(103, 6)).astype(np.float32)
QUERIES = RNG.integers(-2, 3, size=(5, 6)).astype(np.float32)
DOC_IDS = [f"d{i}" for i in range(103)]
DTYPES = ["float32", "bfloat16", "int8"]


@pytest.fixture(scope="module")
def query_encoder():
    model = tiny.dual_encoder(embedding_dim=6)
    return QueryEncoder(model.query_tower, model.preprocessor)


@pytest.fixture(scope="module")
def wide_query_encoder():
    model = tiny.dual_encoder(embedding_dim=32)
    return QueryEncoder(model.query_tower, model.preprocessor)


def expected(k, queries=QUERIES, embeddings=EMBEDDINGS):
    scores = queries.astype(np.float64) @ embeddings.T.astype(np.float64)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def unit_vectors(rows, seed):
    vectors = np.random.default_rng(seed).normal(size=(rows, 32)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_rows", [1000, 103, 50, 20, 3])
def test_search_is_exact_and_ties_go_by_position(query_encoder, dtype, block_rows):
    retriever = ExactRetriever(
        query_encoder, EMBEDDINGS, DOC_IDS, dtype=dtype, block_rows=block_rows
    )
    for k in (1, 10, 60, 103, 500):
        scores, found = retriever.search_positions(QUERIES, k)
        indices, expected_scores = expected(k)
        np.testing.assert_array_equal(found, indices)
        np.testing.assert_array_equal(scores, expected_scores)


def test_bfloat16_is_exact_over_rounded_vectors(wide_query_encoder):
    vectors, queries = unit_vectors(1000, 0), unit_vectors(7, 1)
    doc_ids = [str(i) for i in range(1000)]
    retriever = ExactRetriever(
        wide_query_encoder, vectors, doc_ids, dtype="bfloat16", block_rows=64
    )
    found = retriever.search(tf.constant(queries), tf.constant(20))
    indices, scores = expected(20, queries, vectors.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found["indices"], indices)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-6)


@pytest.mark.parametrize("block_rows", [5000, 64])
def test_int8_scores_again_what_it_finds(wide_query_encoder, block_rows):
    vectors, queries = unit_vectors(5000, 0), unit_vectors(7, 1)
    vectors[77] = 0
    vectors[4000] = vectors[30]
    doc_ids = [str(i) for i in range(5000)]
    retriever = ExactRetriever(
        wide_query_encoder, vectors, doc_ids, dtype="int8", block_rows=block_rows
    )
    # Both bytes together are off by a step of 1/64,516 of a row's largest number at most.
    step = np.abs(vectors).max() / 64_516 + 1e-7
    bound = step * np.abs(queries).sum(axis=1, keepdims=True)
    for k in (1, 10, 200, 9000):
        scores, found = retriever.search_positions(queries, k)
        indices, expected_scores = expected(k, queries, vectors)
        assert found.shape == indices.shape
        assert (np.abs(scores - expected_scores) <= bound).all()
        if k <= 10:
            np.testing.assert_array_equal(found, indices)
        for row in found:
            assert len(set(row)) == len(row)
            twins = row[np.isin(row, [30, 4000])].tolist()
            assert twins == [30, 4000][: len(twins)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_queries(query_encoder, dtype):
    for block_rows in (1000, 20):
        retriever = ExactRetriever(
            query_encoder, EMBEDDINGS, DOC_IDS, dtype=dtype, block_rows=block_rows
        )
        _, found = retriever.search_positions(np.zeros((0, 6), np.float32), 4)
        assert found.shape == (0, 4)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(query_encoder, k):
    retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`k` must be at least 1. Received:"):
        retriever.search(tf.constant(QUERIES), tf.constant(k))


def test_hits_of_a_query_are_bounded(query_encoder):
    """A run holds a row of them for each query: those of a few hundred queries fill the memory."""
    doc_ids = [str(i) for i in range(20_001)]
    retriever = ExactRetriever(query_encoder, np.ones([20_001, 6], np.float32), doc_ids)
    assert retriever.search_positions(QUERIES[:1], 20_000)[1].shape == (1, 20_000)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`k` must be at most 20000. Recei"):
        retriever.search_positions(QUERIES[:1], 20_001)
    few = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS)
    assert few.search_positions(QUERIES[:1], 2**31 - 1)[1].shape == (1, 103)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [np.nan, np.inf, 2e9])
def test_queries_without_an_order_are_refused(query_encoder, dtype, number):
    retriever = ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS, dtype=dtype)
    queries = QUERIES.copy()
    queries[2, 1] = number
    with pytest.raises(tf.errors.InvalidArgumentError, match="embeddings must be finite"):
        retriever.search(queries, 3)


def test_an_unknown_dtype_is_refused(query_encoder):
    with pytest.raises(ConfigError, match=r"`dtype` must be one of float32, .* Received: 'int4'"):
        ExactRetriever(query_encoder, EMBEDDINGS, DOC_IDS, dtype="int4")


@pytest.mark.parametrize(
    ("dtype", "block_rows"), [("float32", 1000), ("float32", 20), ("bfloat16", 20), ("int8", 20)]
)
def test_search_compiles_at_fixed_shapes(query_encoder, tmp_path, dtype, block_rows):
    retriever = ExactRetriever(
        query_encoder, EMBEDDINGS, DOC_IDS, dtype=dtype, block_rows=block_rows
    )
    save_retriever(retriever, tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for k in (1, 7):

        @tf.function(jit_compile=True)
        def search(queries, k=k):
            return loaded.signatures["search"](embeddings=queries, k=tf.constant(k))

        found = search(tf.constant(QUERIES))
        indices, scores = expected(k)
        np.testing.assert_array_equal(found["indices"], indices)
        np.testing.assert_allclose(found["scores"], scores, rtol=1e-6)


def test_the_graph_holds_no_vectors(query_encoder, tmp_path):
    sizes = []
    for copies in (1, 50):
        vectors = np.tile(EMBEDDINGS, (copies, 1))
        doc_ids = [str(i) for i in range(len(vectors))]
        retriever = ExactRetriever(query_encoder, vectors, doc_ids, dtype="int8", block_rows=64)
        save_retriever(retriever, tmp_path / str(copies))
        sizes.append((tmp_path / str(copies) / "saved_model.pb").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 1000
