"""Text to the k best documents with ordinary ops: runs on any TensorFlow Serving, and under XLA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfde.export.retriever import (
    LOOP_SHAPES,
    Retriever,
    at_least_one,
    each_query,
    merge_block,
    nothing_found,
)
from tfde.export.saved_models import QueryEncoder
from tfde.export.stored_rows import RowsDtype, StoredRows

_NUMBERS_IN_BLOCK = 2**22  # 16 MB in float32
_ALIGNED_ROWS = 64  # a slice from elsewhere would be copied


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
        k = tf.minimum(at_least_one(k), self._rows.shape[0])
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
