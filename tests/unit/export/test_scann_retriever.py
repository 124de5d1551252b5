"""The ScaNN retriever answers as the index it was made from, whose own trees it holds."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.export.scann_retriever import ScannRetriever, save_scann_retriever
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.towers.saved_models import QueryEncoder

DIM = 8
PARAMETERS = {
    "exact": ScannParameters(kind="exact"),
    "hash": ScannParameters(kind="hash", reorder=50),
    "tree": ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=3, reorder=50),
    "codes only": ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=3, reorder=0),
}


def unit_vectors(rows, seed):
    vectors = np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def query_encoder():
    model = tiny.dual_encoder(embedding_dim=DIM)
    return QueryEncoder(model.query_tower, model.preprocessor)


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("k", [1, 10, 300, 5000])
def test_search_equals_the_index(query_encoder, kind, k):
    vectors, queries = unit_vectors(600, 0), unit_vectors(17, 1)
    doc_ids = [f"d{i}" for i in range(600)]
    index = ScannIndex.build(vectors, doc_ids, parameters=PARAMETERS[kind])
    found = ScannRetriever(query_encoder, index).search(tf.constant(queries), tf.constant(k))
    scores, positions = index.search_positions(queries, k)
    np.testing.assert_array_equal(found["indices"], positions)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-6)


def test_two_retrievers_of_like_shape_in_one_process(query_encoder, tmp_path):
    queries = unit_vectors(5, 2)
    retrievers, indexes = [], []
    for seed in (10, 11):
        index = ScannIndex.build(unit_vectors(100, seed), [f"{seed}-{i}" for i in range(100)])
        save_scann_retriever(ScannRetriever(query_encoder, index), tmp_path / str(seed))
        indexes.append(index)
        retrievers.append(tf.saved_model.load(str(tmp_path / str(seed))))
    for index, retriever in zip(indexes, retrievers, strict=True):
        found = retriever.signatures["search"](embeddings=tf.constant(queries), k=tf.constant(7))
        np.testing.assert_array_equal(found["indices"], index.search_positions(queries, 7)[1])


def test_k_below_one_is_refused(query_encoder):
    index = ScannIndex.build(unit_vectors(50, 0), [f"d{i}" for i in range(50)])
    retriever = ScannRetriever(query_encoder, index)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`k` must be at least 1. Received:"):
        retriever.search(tf.constant(unit_vectors(1, 0)), tf.constant(0))


@pytest.mark.parametrize("kind", PARAMETERS)
def test_no_queries(query_encoder, kind):
    doc_ids = [f"d{i}" for i in range(50)]
    index = ScannIndex.build(unit_vectors(50, 0), doc_ids, parameters=PARAMETERS[kind])
    retriever = ScannRetriever(query_encoder, index)
    found = retriever.retrieve(tf.constant([], tf.string), tf.constant(3))
    assert found["doc_ids"].shape == (0, 3)
