"""Text to the k best documents with ordinary ops: runs on any TensorFlow Serving, and under XLA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfde.export.saved_models import QueryEncoder, save

BLOCK_ROWS = 32_768


class ExactRetriever(tf.Module):
    """Scores every document; memory beside the embeddings is bounded by a block of them.

    Args:
        query_encoder: Text to embeddings.
        embeddings: (N, D) document embeddings.
        doc_ids: N ids in the same order.
        block_rows: Documents that are scored at a time.
    """

    def __init__(
        self,
        query_encoder: QueryEncoder,
        embeddings: np.ndarray,
        doc_ids: Sequence[str],
        *,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        super().__init__()
        self.query_encoder = query_encoder
        self.embeddings = tf.Variable(
            np.asarray(embeddings, np.float32), trainable=False, name="embeddings"
        )
        # A variable, not a constant: a graph must stay below 2 GB.
        self.doc_ids = tf.Variable(list(doc_ids), trainable=False, dtype=tf.string, name="doc_ids")
        self._block_rows = block_rows
        spec = tf.TensorSpec([None, embeddings.shape[1]], tf.float32, name="embeddings")
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
        rows = self.embeddings.shape[0]
        k = at_least_one(k)
        k = tf.minimum(k, rows)
        if rows <= self._block_rows:
            scores, indices = tf.math.top_k(
                tf.matmul(embeddings, self.embeddings, transpose_b=True), k
            )
            return {"indices": indices, "scores": scores}
        queries = tf.shape(embeddings)[0]
        best_scores = tf.fill([queries, k], tf.float32.min)
        best_indices = tf.zeros([queries, k], tf.int32)
        full_blocks, rest = divmod(rows, self._block_rows)

        def merge(
            first: tf.Tensor, size: int, best_scores: tf.Tensor, best_indices: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            # `tf.slice` of whole rows shares memory with the variable.
            block = tf.slice(self.embeddings, [first, 0], [size, self.embeddings.shape[1]])
            scores = tf.matmul(embeddings, block, transpose_b=True)
            # Earlier documents stand first, and `top_k` prefers what stands first.
            scores, positions = tf.math.top_k(tf.concat([best_scores, scores], 1), k)
            earlier = tf.gather(best_indices, tf.minimum(positions, k - 1), batch_dims=1)
            return scores, tf.where(positions < k, earlier, positions - k + first)

        shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None, None]))
        _, best_scores, best_indices = tf.while_loop(
            lambda block, *_: block < full_blocks,
            lambda block, *best: (
                block + 1,
                *merge(block * self._block_rows, self._block_rows, *best),
            ),
            (0, best_scores, best_indices),
            shape_invariants=shapes,
            parallel_iterations=1,
            maximum_iterations=full_blocks,
        )
        if rest:
            first = tf.constant(full_blocks * self._block_rows)
            best_scores, best_indices = merge(first, rest, best_scores, best_indices)
        return {"indices": best_indices, "scores": best_scores}


def at_least_one(k: tf.Tensor) -> tf.Tensor:
    """Returns `k`; a run with one below 1 ends with INVALID_ARGUMENT."""
    check = tf.debugging.Assert(k >= 1, ["`k` must be at least 1. Received:", k])
    with tf.control_dependencies([check]):
        return tf.identity(k)


def save_retriever(retriever: ExactRetriever, directory: Path) -> None:
    """Writes a retriever with the signatures `serving_default` and `search`."""
    save(
        retriever,
        directory,
        {"serving_default": retriever.retrieve, "search": retriever.search},
    )
