"""Text to the k best documents with ordinary ops: runs on any TensorFlow Serving, and under XLA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfde.export.retriever import Retriever, at_least_one
from tfde.export.saved_models import QueryEncoder, save

BLOCK_ROWS = 32_768


class ExactRetriever(Retriever):
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
        super().__init__(query_encoder, doc_ids, embedding_dim=embeddings.shape[1])
        self.embeddings = tf.Variable(
            np.asarray(embeddings, np.float32), trainable=False, name="embeddings"
        )
        self._block_rows = block_rows

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
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


def save_retriever(retriever: ExactRetriever, directory: Path) -> None:
    """Writes a retriever with the signatures `serving_default` and `search`."""
    save(
        retriever,
        directory,
        {"serving_default": retriever.retrieve, "search": retriever.search},
    )
