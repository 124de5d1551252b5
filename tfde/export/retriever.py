"""What the retrievers share: text to embeddings, positions to document ids, the best of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfde.export.saved_models import QueryEncoder, save

_QUERIES_AT_ONCE = 4


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
        self.search = tf.function(self._search, input_signature=[spec, k], autograph=False)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([], tf.int32, name="k"),
        ],
        autograph=False,
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

    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores (Q, K) float32 and positions (Q, K) int32 of (Q, D), as an index does."""
        found = self.search(tf.constant(query_embeddings), tf.constant(k))
        return found["scores"].numpy(), found["indices"].numpy()

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `indices` (Q, K) int32 and `scores` (Q, K) float32; ties by position."""
        raise NotImplementedError


def save_retriever(
    retriever: Retriever, directory: Path, *, op_namespaces: tuple[str, ...] = ()
) -> None:
    """Writes a retriever with the signatures `serving_default` and `search`."""
    signatures = {"serving_default": retriever.retrieve, "search": retriever.search}
    save(retriever, directory, signatures, op_namespaces=op_namespaces)


def at_least_one(k: tf.Tensor) -> tf.Tensor:
    """Returns `k`; a run with one below 1 ends with INVALID_ARGUMENT."""
    check = tf.debugging.Assert(k >= 1, ["`k` must be at least 1. Received:", k])
    with tf.control_dependencies([check]):
        return tf.identity(k)


def nothing_found(queries: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scores and positions (Q, K) that any document beats."""
    return tf.fill([queries, k], tf.float32.min), tf.zeros([queries, k], tf.int32)


def merge_block(
    best: tuple[tf.Tensor, tf.Tensor], scores: tf.Tensor, first: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the K best of those so far and of the next block; ties by position.

    Args:
        best: Scores float32 and positions int32 so far, (Q, K).
        scores: Of the block, (Q, B) float32.
        first: Position of the block's first document, () int32; blocks come in order.
    """
    k = tf.shape(best[0])[1]
    # Earlier documents stand first, and `top_k` prefers what stands first.
    scores, columns = tf.math.top_k(tf.concat([best[0], scores], 1), k)
    earlier = tf.gather(best[1], tf.minimum(columns, k - 1), batch_dims=1)
    return scores, tf.where(columns < k, earlier, columns - k + first)


def each_query(
    search: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    embeddings: tf.Tensor,
    k: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Searches for one query after the other, so that memory does not grow with their number.

    Args:
        search: Embedding (1, D) and number () int32 of a query to its scores and indices, (K,).
        embeddings: (Q, D) float32.
        k: K.

    Returns:
        `indices` (Q, K) int32 and `scores` (Q, K) float32.
    """
    queries = tf.shape(embeddings)[0]

    def step(
        query: tf.Tensor, scores: tf.Tensor, indices: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        found_scores, found_indices = search(embeddings[query : query + 1], query)
        scores = tf.tensor_scatter_nd_update(scores, [[query]], found_scores[tf.newaxis])
        indices = tf.tensor_scatter_nd_update(indices, [[query]], found_indices[tf.newaxis])
        return query + 1, scores, indices

    _, scores, indices = tf.while_loop(
        lambda query, *_: query < queries,
        step,
        (0, *nothing_found(queries, k)),
        shape_invariants=LOOP_SHAPES,
        parallel_iterations=_QUERIES_AT_ONCE,
        maximum_iterations=queries,
    )
    return {"indices": indices, "scores": scores}


LOOP_SHAPES = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None, None]))
