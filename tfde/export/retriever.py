"""What the retrievers share: text to embeddings, positions to document ids, the best of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfde.export.stored_rows import RowsDtype, StoredRows
from tfde.retrieval.index_directory import LARGEST
from tfde.towers.saved_models import QueryEncoder, save

MAX_HITS = 20_000  # of a query: an answer has a row of them for each
_QUERIES_AT_ONCE = 4
_NUMBERS_IN_BLOCK = 2**22  # 16 MB in float32
_ALIGNED_ROWS = 64  # a slice from elsewhere would be copied


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
        self.search = tf.function(self._search_checked, input_signature=[spec, k], autograph=False)

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
            k: () int32, at least 1; K = min(k, N), at most 20,000. Else INVALID_ARGUMENT.
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

    def _search_checked(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what `_search` does; embeddings that have no order end with INVALID_ARGUMENT."""
        rule = f"embeddings must be finite and at most {LARGEST:g} in size."
        check = tf.debugging.Assert(tf.reduce_all(tf.abs(embeddings) <= LARGEST), [rule])
        with tf.control_dependencies([check]):
            return self._search(tf.identity(embeddings), k)

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `indices` (Q, K) int32 and `scores` (Q, K) float32; ties by position."""
        raise NotImplementedError


def save_retriever(
    retriever: Retriever, directory: Path, *, op_namespaces: tuple[str, ...] = ()
) -> None:
    """Writes a retriever with the signatures `serving_default` and `search`."""
    signatures = {"serving_default": retriever.retrieve, "search": retriever.search}
    save(retriever, directory, signatures, op_namespaces=op_namespaces)


def checked_hits(k: tf.Tensor, documents: int) -> tf.Tensor:
    """Returns K = min(k, N); a run with one below 1 or above 20,000 ends with INVALID_ARGUMENT.

    Args:
        k: () int32, as asked for.
        documents: N.
    """
    least = tf.debugging.Assert(k >= 1, ["`k` must be at least 1. Received:", k])
    hits = tf.minimum(k, documents)
    checks = [least]
    if documents > MAX_HITS:
        rule = f"`k` must be at most {MAX_HITS}. Received:"
        checks.append(tf.debugging.Assert(hits <= MAX_HITS, [rule, k]))
    with tf.control_dependencies(checks):
        return tf.identity(hits)


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


class ExactRetriever(Retriever):
    """Scores every document, block by block.

    Memory beside the stored vectors is bounded by a block of them in float32 and its scores. What
    is exact depends on `dtype`: in `float32` everything; in `bfloat16` the search, over vectors
    that were rounded; in `int8` the documents found are those of highest exact score among the 4k
    (at least 100) best by the first byte, and their scores are off by the rounding of both bytes.
    Ties go by position.

    Args:
        query_encoder: Text to embeddings.
        embeddings: (N, D) document embeddings.
        doc_ids: N ids in the same order.
        dtype: How vectors are stored, see `StoredRows`.
        block_rows: Documents that are scored at a time; by default as many as 16 MB hold in
            float32.

    Raises:
        ConfigError: another dtype.
    """

    def __init__(
        self,
        query_encoder: QueryEncoder,
        embeddings: np.ndarray,
        doc_ids: Sequence[str],
        *,
        dtype: RowsDtype = "float32",
        block_rows: int | None = None,
    ) -> None:
        super().__init__(query_encoder, doc_ids, embedding_dim=embeddings.shape[1])
        self._rows = StoredRows(embeddings, dtype)
        aligned = _NUMBERS_IN_BLOCK // embeddings.shape[1] // _ALIGNED_ROWS * _ALIGNED_ROWS
        self._block_rows = block_rows or max(_ALIGNED_ROWS, aligned)

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        k = checked_hits(k, self._rows.shape[0])
        scores, indices = self._scan(embeddings, self._rows.candidates(k))
        if not self._rows.rescored:
            return {"indices": indices, "scores": scores}

        def rescore(query: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # In order of position, for the sake of ties.
            rows = tf.sort(indices[number])
            best, columns = tf.math.top_k(self._rows.rescore(query, rows), k)
            return best, tf.gather(rows, columns)

        return each_query(rescore, embeddings, k)

    def _scan(self, embeddings: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows, size = self._rows.shape[0], self._block_rows
        if rows <= size:
            return tf.math.top_k(self._rows.scan(embeddings, tf.constant(0), rows), k)
        best = nothing_found(tf.shape(embeddings)[0], k)
        full_blocks, rest = divmod(rows, size)

        def step(block: tf.Tensor, *best: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            first = block * size
            return block + 1, *merge_block(best, self._rows.scan(embeddings, first, size), first)

        _, *best = tf.while_loop(
            lambda block, *_: block < full_blocks,
            step,
            (0, *best),
            shape_invariants=LOOP_SHAPES,
            parallel_iterations=1,
            maximum_iterations=full_blocks,
        )
        if rest:
            first = tf.constant(full_blocks * size)
            best = merge_block(best, self._rows.scan(embeddings, first, rest), first)
        return best[0], best[1]
