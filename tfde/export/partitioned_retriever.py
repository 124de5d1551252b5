"""Text to about the k best documents with ordinary ops, looking at a part of them only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.errors import require
from tfde.export.partitions import Partitions, leaves_for_recall, partition
from tfde.export.retriever import (
    Retriever,
    at_least_one,
    each_query,
)
from tfde.export.saved_models import QueryEncoder
from tfde.export.stored_rows import RowsDtype, StoredRows
from tfde.retrieval.recall import measure_recall, sample_queries

_RECALL_K = 10
_SAMPLED_QUERIES = 1000


class PartitionedRetriever(Retriever):
    """Scores the documents of the leaves nearest to the query.

    Approximate: a document of a leaf that is not searched is not found. There are min(k, N)
    documents in every answer: a query whose leaves hold fewer searches more of them. Scores are
    those of `StoredRows`, ties go by position. Of the vectors, blocks of 2 MB are read
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
        k = tf.minimum(at_least_one(k), self._rows.shape[0])
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
