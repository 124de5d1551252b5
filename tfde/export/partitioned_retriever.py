"""Text to about the k best documents with ordinary ops, looking at a part of them only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.sparse import csr_matrix

from tfde.errors import require
from tfde.export.retriever import (
    Retriever,
    checked_hits,
    each_query,
)
from tfde.export.stored_rows import RowsDtype, StoredRows
from tfde.retrieval.recall import measure_recall, sample_queries, unit_rows
from tfde.retrieval.top_k import exact_top_k
from tfde.towers.saved_models import QueryEncoder

_RECALL_K = 10
_SAMPLED_QUERIES = 1000
_LEAVES_PER_ROOT = 2
_SAMPLE_PER_LEAF = 64
_ITERATIONS = 10
_ROWS_AT_ONCE = 8192  # with 2,000 leaves: 64 MB of similarities


class PartitionedRetriever(Retriever):
    """Scores the documents of the leaves nearest to the query.

    Approximate: a document of a leaf that is not searched is not found. There are min(k, N)
    documents in every answer: a query whose leaves hold fewer searches more of them. Scores are
    those of `StoredRows`; ties go by position, but at the last place of an answer, where the leaf
    decides. Of the vectors, blocks of 2 MB are read
    for four queries at a time; a batch takes a few numbers more for each query and leaf.

    Args:
        query_encoder: Text to embeddings.
        embeddings: (N, D) document embeddings.
        doc_ids: N ids in the same order.
        partitions: Of the embeddings.
        leaves_to_search: Leaves a query.
        dtype: How vectors are stored, see `StoredRows`.

    Raises:
        ConfigError: another dtype, or `leaves_to_search` not in [1, number of leaves].
    """

    def __init__(
        self,
        query_encoder: QueryEncoder,
        embeddings: np.ndarray,
        doc_ids: Sequence[str],
        partitions: Partitions,
        *,
        leaves_to_search: int,
        dtype: RowsDtype = "float32",
    ) -> None:
        super().__init__(query_encoder, doc_ids, embedding_dim=embeddings.shape[1])
        leaves = len(partitions.centroids)
        fits = 1 <= leaves_to_search <= leaves
        require(fits, "leaves_to_search", f"in [1, {leaves}]", leaves_to_search)
        self._leaves_to_search = leaves_to_search
        self._rows = StoredRows(embeddings[partitions.positions], dtype)
        self._centroids = tf.Variable(partitions.centroids, trainable=False, name="centroids")
        self._positions = tf.Variable(partitions.positions, trainable=False, name="positions")
        self._starts = tf.Variable(partitions.starts, trainable=False, name="starts")

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        k = checked_hits(k, self._rows.shape[0])
        candidates = self._rows.candidates(k)
        starts = self._starts.read_value()
        similarities = tf.matmul(embeddings, self._centroids, transpose_b=True)
        leaves = tf.argsort(similarities, axis=1, direction="DESCENDING", stable=True)
        # As many more as hold k documents.
        held = tf.cumsum(tf.gather(starts[1:] - starts[:-1], leaves), axis=1)
        enough = 1 + tf.reduce_sum(tf.cast(held < k, tf.int32), axis=1)
        counts = tf.maximum(enough, self._leaves_to_search)

        def search(query: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            searched = leaves[number, : counts[number]]
            rows = tf.ragged.range(tf.gather(starts, searched), tf.gather(starts, searched + 1))
            rows = rows.flat_values
            scores = self._rows.score(query, rows)
            scores, columns = tf.math.top_k(scores, tf.minimum(candidates, tf.size(rows)))
            rows = tf.gather(rows, columns)
            # In order of position, for the sake of ties.
            positions = tf.gather(self._positions.read_value(), rows)
            order = tf.argsort(positions)
            if self._rows.rescored:
                scores = self._rows.rescore(query, tf.gather(rows, order))
            else:
                scores = tf.gather(scores, order)
            best, columns = tf.math.top_k(scores, k)
            return best, tf.gather(positions, tf.gather(order, columns))

        return each_query(search, embeddings, k)


def build_partitioned_retriever(
    query_encoder: QueryEncoder,
    embeddings: np.ndarray,
    doc_ids: Sequence[str],
    *,
    query_embeddings: np.ndarray,
    target_recall: float,
    dtype: RowsDtype = "float32",
    seed: int = 0,
) -> tuple[PartitionedRetriever, dict[str, Any]]:
    """Returns a retriever that searches as many leaves as a recall needs, and what that took.

    One half of the queries decides how many leaves that is, the other half measures the recall.

    Args:
        query_encoder: Text to embeddings.
        embeddings: (N, D) float32 document embeddings.
        doc_ids: N ids in the same order.
        query_embeddings: (Q, D) float32, Q a few hundred at least; stand-ins take their place
            where Q is 0 (`sample_queries`).
        target_recall: Share of the 10 best documents that must be found.
        dtype: How vectors are stored, see `StoredRows`.
        seed: Of leaves and stand-ins.

    Returns:
        The retriever, and `leaves`, `leaves_to_search`, `target_recall`, `recall_at_10`,
        `recall_queries` (how many measured it) and `sampled_queries` (whether stand-ins).

    Raises:
        ConfigError: an unknown dtype, or `target_recall` not in (0, 1].
    """
    sampled = not len(query_embeddings)
    queries = sample_queries(embeddings, _SAMPLED_QUERIES, seed) if sampled else query_embeddings
    choosing, measuring = (queries[::2], queries[1::2]) if len(queries) > 1 else (queries, queries)
    partitions = partition(embeddings, seed=seed)
    leaves_to_search = leaves_for_recall(
        partitions, embeddings, choosing, target_recall=target_recall, k=_RECALL_K
    )
    retriever = PartitionedRetriever(
        query_encoder,
        embeddings,
        doc_ids,
        partitions,
        leaves_to_search=leaves_to_search,
        dtype=dtype,
    )
    found = measure_recall(retriever, embeddings, measuring, _RECALL_K)
    return retriever, {
        "leaves": len(partitions.centroids),
        "leaves_to_search": leaves_to_search,
        "target_recall": target_recall,
        "recall_at_10": round(found.recall, 4),
        "recall_queries": found.num_queries,
        "sampled_queries": sampled,
    }


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
    centroids = unit_rows(np.asarray(vectors[chosen[:num_leaves]], np.float32))
    sample = unit_rows(np.asarray(vectors[np.sort(chosen)], np.float32))
    for _ in range(_ITERATIONS):
        leaves = _nearest(sample, centroids)
        ones = np.ones(len(sample), np.float32)
        members = csr_matrix((ones, (leaves, np.arange(len(sample)))), (num_leaves, len(sample)))
        sums = members @ sample
        centroids = np.where(sums.any(axis=1, keepdims=True), unit_rows(sums), centroids)
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
    _, wanted = exact_top_k([vectors], query_embeddings, k)
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
