"""Documents grouped by direction, so that a query need not look at all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from tfde.errors import require
from tfde.retrieval.exact_index import ExactIndex

_LEAVES_PER_ROOT = 2
_SAMPLE_PER_LEAF = 64
_ITERATIONS = 10
_ROWS_AT_ONCE = 8192  # with 2,000 leaves: 64 MB of similarities


class Partitions(NamedTuple):
    """N documents in L leaves, none of them empty.

    Attributes:
        centroids: Direction of each leaf, (L, D) float32 of unit norm.
        positions: The documents' positions leaf by leaf, (N,) int32, ascending within a leaf.
        starts: Where each leaf begins in `positions`, and N at the end, (L + 1,) int32.
    """

    centroids: np.ndarray
    positions: np.ndarray
    starts: np.ndarray


def partition(vectors: np.ndarray, *, num_leaves: int | None = None, seed: int = 0) -> Partitions:
    """Returns leaves by spherical k-means: a document belongs to the nearest direction.

    Centroids are learned in 10 rounds from at most 64 vectors a leaf. The same input gives the
    same leaves.

    Args:
        vectors: (N, D) floating, finite; at least one.
        num_leaves: How many to begin with, those that stay empty are dropped; by default twice
            the square root of N.
        seed: Decides which vectors are learned from, and which begin as centroids.

    Raises:
        ConfigError: `num_leaves` below 1 or above N.

    Source: Dhillon and Modha 2001 (spherical k-means); sizes chosen by measurement here.
    """
    rows = len(vectors)
    if num_leaves is None:
        num_leaves = min(rows, max(1, round(_LEAVES_PER_ROOT * rows**0.5)))
    require(1 <= num_leaves <= rows, "num_leaves", f"in [1, {rows}]", num_leaves)
    generator = np.random.default_rng(seed)
    chosen = generator.choice(rows, min(rows, _SAMPLE_PER_LEAF * num_leaves), replace=False)
    centroids = _unit(np.asarray(vectors[chosen[:num_leaves]], np.float32))
    sample = _unit(np.asarray(vectors[np.sort(chosen)], np.float32))
    for _ in range(_ITERATIONS):
        leaves = _nearest(sample, centroids)
        ones = np.ones(len(sample), np.float32)
        members = csr_matrix((ones, (leaves, np.arange(len(sample)))), (num_leaves, len(sample)))
        sums = members @ sample
        centroids = np.where(sums.any(axis=1, keepdims=True), _unit(sums), centroids)
    leaves = _nearest(vectors, centroids)
    kept, leaves = np.unique(leaves, return_inverse=True)
    return Partitions(
        centroids[kept],
        np.argsort(leaves, kind="stable").astype(np.int32),
        np.concatenate([[0], np.cumsum(np.bincount(leaves))]).astype(np.int32),
    )


def leaves_for_recall(
    partitions: Partitions,
    vectors: np.ndarray,
    query_embeddings: np.ndarray,
    *,
    target_recall: float,
    k: int = 10,
) -> int:
    """Returns how many leaves must be searched to find a share of the k best documents.

    Args:
        partitions: Of the vectors.
        vectors: (N, D) floating.
        query_embeddings: (Q, D) float32, at least one.
        target_recall: The share, above 0, at most 1.
        k: Of how many documents.

    Raises:
        ConfigError: `target_recall` out of range.
    """
    check_target_recall(target_recall)
    exact = ExactIndex([vectors], [""] * len(vectors))
    _, wanted = exact.search_positions(query_embeddings, k)
    leaf_of = np.empty(len(vectors), np.int64)
    sizes = np.diff(partitions.starts)
    leaf_of[partitions.positions] = np.repeat(np.arange(len(sizes)), sizes)
    similarities = query_embeddings @ partitions.centroids.T
    ranks = np.argsort(np.argsort(-similarities, axis=1, kind="stable"), axis=1)
    needed = np.sort(np.take_along_axis(ranks, leaf_of[wanted], 1), axis=None)
    return int(needed[int(np.ceil(target_recall * needed.size)) - 1]) + 1


def check_target_recall(target_recall: float) -> None:
    """Refuses what is no share.

    Raises:
        ConfigError: not above 0 and at most 1.
    """
    require(0 < target_recall <= 1, "target_recall", "above 0 and at most 1", target_recall)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    leaves = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        block = np.asarray(vectors[part], np.float32)
        leaves[part] = np.argmax(block @ centroids.T, axis=1)
    return leaves


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
