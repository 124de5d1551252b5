"""What the retrievers share: text to embeddings, positions to document ids."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfde.export.saved_models import QueryEncoder


class Retriever(tf.Module):
    """Text to documents around a search that a subclass defines as `_search`.

    Args:
        query_encoder: Text to embeddings.
        doc_ids: N ids in the order of the positions that the search finds.
        embedding_dim: D of the embeddings.
    """

    def __init__(
        self, query_encoder: QueryEncoder, doc_ids: Sequence[str], *, embedding_dim: int
    ) -> None:
        super().__init__()
        self.query_encoder = query_encoder
        # A variable, not a constant: a graph must stay below 2 GB.
        self.doc_ids = tf.Variable(list(doc_ids), trainable=False, dtype=tf.string, name="doc_ids")
        spec = tf.TensorSpec([None, embedding_dim], tf.float32, name="embeddings")
        k = tf.TensorSpec([], tf.int32, name="k")
        self.search = tf.function(self._search, input_signature=[spec, k])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([], tf.int32, name="k"),
        ]
    )
    def retrieve(self, text: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `doc_ids` (Q, K) string and `scores` (Q, K) float32, best first.

        Args:
            text: Queries, (Q,) string.
            k: () int32, at least 1 (else INVALID_ARGUMENT); K = min(k, N).
        """
        found = self.search(self.query_encoder.encode(text)["embeddings"], k)
        return {
            "doc_ids": tf.gather(self.doc_ids, found["indices"]),
            "scores": found["scores"],
        }

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `indices` (Q, K) int32 and `scores` (Q, K) float32; ties by position."""
        raise NotImplementedError


def at_least_one(k: tf.Tensor) -> tf.Tensor:
    """Returns `k`; a run with one below 1 ends with INVALID_ARGUMENT."""
    check = tf.debugging.Assert(k >= 1, ["`k` must be at least 1. Received:", k])
    with tf.control_dependencies([check]):
        return tf.identity(k)
