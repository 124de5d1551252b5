"""Leaves by direction, how many of them a recall needs, and the search in them."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.errors import ConfigError
from tfde.export.partitioned_retriever import (
    PartitionedRetriever,
    Partitions,
    build_partitioned_retriever,
    leaves_for_recall,
    partition,
)
from tfde.towers.saved_models import QueryEncoder

DIM = 16
DTYPES = ["float32", "bfloat16", "int8"]


def clustered(rows, seed, *, dim=DIM, clusters=20):
    centres = np.random.default_rng(99).normal(size=(clusters, dim))
    generator = np.random.default_rng(seed)
    points = centres[generator.integers(0, clusters, rows)]
    points = points + 0.5 * generator.normal(size=points.shape)
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


VECTORS, QUERIES = clustered(1500, 0), clustered(60, 1)
# What bfloat16 holds as it is, so that every dtype is held to the same answers.
ROUNDED = VECTORS.astype(ml_dtypes.bfloat16).astype(np.float32)
DOC_IDS = [f"d{i}" for i in range(len(VECTORS))]


@pytest.fixture(scope="module")
def query_encoder():
    model = tiny.dual_encoder(embedding_dim=DIM)
    return QueryEncoder(model.query_tower, model.preprocessor)


def best(vectors, queries, k):
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def test_every_document_lies_in_the_leaf_of_the_nearest_direction():
    centroids, positions, starts = partition(VECTORS, num_leaves=30)
    np.testing.assert_array_equal(np.sort(positions), np.arange(len(VECTORS)))
    assert starts[0] == 0
    assert starts[-1] == len(VECTORS)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-6)
    nearest = np.argmax(VECTORS.astype(np.float64) @ centroids.T, axis=1)
    for leaf, (start, end) in enumerate(pairwise(starts)):
        np.testing.assert_array_equal(positions[start:end], np.flatnonzero(nearest == leaf))


def test_leaves_gather_what_points_the_same_way():
    corners = np.eye(8, dtype=np.float32)
    near = np.repeat(corners, 40, axis=0)
    near += 0.05 * np.random.default_rng(0).normal(size=near.shape).astype(np.float32)
    near *= np.random.default_rng(1).uniform(0.5, 9, size=(len(near), 1)).astype(np.float32)
    centroids, _, _ = partition(near, num_leaves=16)
    # Every one of the eight directions has a leaf of its own.
    assert (centroids @ corners.T).max(axis=0).min() > 0.99


def test_the_same_input_gives_the_same_leaves():
    first, second, other = (partition(VECTORS, seed=seed) for seed in (3, 3, 4))
    for one, two in zip(first, second, strict=True):
        assert one.tobytes() == two.tobytes()
    assert first.centroids.tobytes() != other.centroids.tobytes()
    assert len(first.centroids) <= 77  # twice the root of 1500


def test_leaves_that_stay_empty_are_dropped():
    vectors = np.tile(np.eye(3, dtype=np.float32), (20, 1))
    centroids, positions, starts = partition(vectors, num_leaves=50)
    assert len(centroids) == 3
    assert len(starts) == 4
    assert len(positions) == 60
    assert len(partition(vectors[:1]).centroids) == 1


@pytest.mark.parametrize("num_leaves", [0, 61])
def test_impossible_numbers_of_leaves(num_leaves):
    with pytest.raises(ConfigError, match=rf"`num_leaves` must be in \[1, 60\]. .*: {num_leaves}"):
        partition(VECTORS[:60], num_leaves=num_leaves)


def test_leaves_for_recall_by_hand():
    # Four leaves of one document each, at 0, 30, 60 and 90 degrees.
    angles = np.deg2rad([0, 30, 60, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    partitions = Partitions(vectors, np.arange(4, dtype=np.int32), np.arange(5, dtype=np.int32))
    queries = vectors[:2]
    for target, leaves in ((0.5, 1), (0.51, 2), (1.0, 2)):
        found = leaves_for_recall(partitions, vectors, queries, target_recall=target, k=2)
        assert found == leaves
    with pytest.raises(ConfigError, match=r"`target_recall` must be above 0 and at most 1\. Rec"):
        leaves_for_recall(partitions, vectors, queries, target_recall=1.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_leaves_are_exact_search(query_encoder, dtype):
    partitions = partition(ROUNDED)
    retriever = PartitionedRetriever(
        query_encoder,
        ROUNDED,
        DOC_IDS,
        partitions,
        leaves_to_search=len(partitions.centroids),
        dtype=dtype,
    )
    for k in (1, 10, 5000):
        scores, positions = retriever.search_positions(QUERIES[:9], k)
        indices, expected = best(ROUNDED, QUERIES[:9], k)
        np.testing.assert_allclose(scores, expected, atol=5e-5)
        if k <= 10:
            np.testing.assert_array_equal(positions, indices)
        else:
            np.testing.assert_array_equal(np.sort(positions), np.sort(indices))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_nearest_leaves_alone_are_searched(query_encoder, dtype, monkeypatch):
    # Blocks far smaller than a leaf.
    monkeypatch.setattr("tfde.export.stored_rows._NUMBERS_IN_BLOCK", 7 * DIM)
    partitions = partition(ROUNDED, num_leaves=20)
    retriever = PartitionedRetriever(
        query_encoder, ROUNDED, DOC_IDS, partitions, leaves_to_search=2, dtype=dtype
    )
    scores, positions = retriever.search_positions(QUERIES, 10)
    for query, row, row_scores in zip(QUERIES, positions, scores, strict=True):
        nearest = np.argsort(-(partitions.centroids @ query))[:2]
        parts = [partitions.positions[slice(*partitions.starts[n : n + 2])] for n in nearest]
        searched = np.sort(np.concatenate(parts))
        indices, expected = best(ROUNDED[searched], query[np.newaxis], 10)
        np.testing.assert_array_equal(row, searched[indices[0]])
        np.testing.assert_allclose(row_scores, expected[0], atol=5e-5)


def test_few_documents_in_the_nearest_leaf(query_encoder):
    # Leaves of 1, 2 and 97 documents; ties everywhere, for all of a leaf are equal.
    vectors = np.zeros((100, DIM), np.float32)
    vectors[50, 0] = 1
    vectors[[10, 20], 1] = 1
    vectors[vectors.sum(1) == 0, 2] = 1
    partitions = partition(vectors, num_leaves=100)
    assert sorted(np.diff(partitions.starts)) == [1, 2, 97]
    for dtype in DTYPES:
        retriever = PartitionedRetriever(
            query_encoder, vectors, DOC_IDS[:100], partitions, leaves_to_search=1, dtype=dtype
        )
        query = np.zeros((1, DIM), np.float32)
        query[0, :3] = 3, 2, 1
        for k in (1, 2, 4, 100, 1000):
            scores, positions = retriever.search_positions(query, k)
            rest = [i for i in range(100) if i not in (10, 20, 50)]
            np.testing.assert_array_equal(positions[0], [50, 10, 20, *rest][:k])
            np.testing.assert_allclose(scores[0], ([3, 2, 2] + [1] * 97)[:k], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_queries_and_no_k(query_encoder, dtype):
    partitions = partition(VECTORS)
    retriever = PartitionedRetriever(
        query_encoder, VECTORS, DOC_IDS, partitions, leaves_to_search=3, dtype=dtype
    )
    assert retriever.search_positions(np.zeros((0, DIM), np.float32), 4)[1].shape == (0, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`k` must be at least 1. Received:"):
        retriever.search_positions(QUERIES, 0)


@pytest.mark.parametrize("leaves_to_search", [0, 6])
def test_impossible_leaves_to_search(query_encoder, leaves_to_search):
    partitions = partition(VECTORS, num_leaves=5)
    rule = r"`leaves_to_search` must be in \[1, 5\]. Received:"
    with pytest.raises(ConfigError, match=f"{rule} {leaves_to_search}"):
        PartitionedRetriever(
            query_encoder, VECTORS, DOC_IDS, partitions, leaves_to_search=leaves_to_search
        )


@pytest.mark.parametrize("target_recall", [0.8, 0.97])
def test_target_recall_is_reached_and_recorded(query_encoder, target_recall):
    queries = clustered(600, 5)
    retriever, about = build_partitioned_retriever(
        query_encoder, VECTORS, DOC_IDS, query_embeddings=queries, target_recall=target_recall
    )
    wanted, _ = best(VECTORS, queries[1::2], 10)
    _, found = retriever.search_positions(queries[1::2], 10)
    hits = [len(set(a) & set(b)) for a, b in zip(wanted, found, strict=True)]
    assert about["recall_at_10"] == round(sum(hits) / 3000, 4)
    assert about["recall_queries"] == 300
    assert not about["sampled_queries"]
    # Chosen on the other half, so it may miss by chance; three standard errors.
    assert about["recall_at_10"] > target_recall - 0.03
    assert 1 <= about["leaves_to_search"] < about["leaves"]


def test_stand_ins_where_there_are_no_queries(query_encoder):
    made = []
    for _ in range(2):
        retriever, about = build_partitioned_retriever(
            query_encoder,
            VECTORS,
            DOC_IDS,
            query_embeddings=np.zeros((0, DIM), np.float32),
            target_recall=0.9,
            dtype="int8",
        )
        assert about["sampled_queries"]
        assert about["recall_queries"] == 500
        numbers = [v.numpy().tobytes() for v in retriever.variables if v.dtype != tf.string]
        made.append((about, numbers))
    # Centroids, positions, starts, both bytes and scales: the same of the same input.
    assert len(made[0][1]) >= 6
    assert made[0] == made[1]
