"""Document vectors as a SavedModel keeps them: in 4 bytes a number, or in 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import tensorflow as tf

from tfde.errors import require
from tfde.storage.rows import scale_rows

RowsDtype = Literal["float32", "bfloat16", "int8"]
_STEPS = 254  # of the second byte in one of the first
_ROWS_AT_ONCE = 65_536
_CANDIDATES_PER_RESULT = 4
_LEAST_CANDIDATES = 100
_NUMBERS_IN_BLOCK = 2**19  # of rows that are gathered: 2 MB in float32
_RESCORED_AT_ONCE = 256


class StoredRows(tf.Module):
    """N vectors, whose dot products with queries are computed block by block.

    - `float32`: as they are.
    - `bfloat16`: rounded to 8 bits of precision, half the bytes. Scores are those of the rounded
      vectors.
    - `int8`: two bytes a number and a scale a row. The first byte is the vector in 127 steps of
      its largest number; the second counts 1/254 of such a step. A scan reads the first byte
      alone (`scan`, `score`), which finds candidates; `rescore` reads both, and then no number
      is off by more than 1/64,516 of its row's largest.

    The products are computed in float32, which every device does well. On a CPU the cast of a
    block costs at least what is saved by reading fewer bytes: the small forms save memory, not
    time.

    Args:
        vectors: (N, D) floating.
        dtype: One of the above.

    Raises:
        ConfigError: another dtype.

    Source: derived here.
    """

    def __init__(self, vectors: np.ndarray, dtype: RowsDtype) -> None:
        super().__init__()
        check_rows_dtype(dtype)
        self.shape: tuple[int, int] = vectors.shape
        self.rescored = dtype == "int8"
        # Variables, not constants: a graph must stay below 2 GB.
        if self.rescored:
            first, second, scales = _two_bytes(vectors)
            self._rows = tf.Variable(first, trainable=False, name="first_bytes")
            self._second = tf.Variable(second, trainable=False, name="second_bytes")
            self._scales = tf.Variable(scales, trainable=False, name="scales")
        else:
            kept = np.asarray(vectors, tf.as_dtype(dtype).as_numpy_dtype)
            self._rows = tf.Variable(kept, trainable=False, name="embeddings")

    def candidates(self, k: tf.Tensor) -> tf.Tensor:
        """Returns how many of the best by `scan` or `score` hold the `k` best; at most N."""
        if not self.rescored:
            return k
        wanted = tf.maximum(_CANDIDATES_PER_RESULT * k, _LEAST_CANDIDATES)
        return tf.minimum(wanted, self.shape[0])

    def scan(self, queries: tf.Tensor, first: tf.Tensor, size: int) -> tf.Tensor:
        """Returns scores (Q, size) of queries (Q, D) and the rows from `first` on, () int32."""
        # A slice of whole rows shares memory with the variable.
        block = tf.slice(self._rows, [first, 0], [size, self.shape[1]])
        scores = _products(queries, block)
        return scores * tf.slice(self._scales, [first], [size]) if self.rescored else scores

    def score(self, query: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns scores (M,) of a query (1, D) and any rows, (M,) int32; as exact as `scan`."""

        def score(rows: tf.Tensor) -> tf.Tensor:
            scores = _products(query, _gather(self._rows, rows))[0]
            return scores * _gather(self._scales, rows) if self.rescored else scores

        return _by_blocks(score, rows, max(1, _NUMBERS_IN_BLOCK // self.shape[1]))

    def rescore(self, query: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns scores as `score`, of both bytes; only where `rescored` is true."""

        def rescore(rows: tf.Tensor) -> tf.Tensor:
            scores = _products(query, _gather(self._rows, rows))[0]
            scores += _products(query, _gather(self._second, rows))[0] / _STEPS
            return scores * _gather(self._scales, rows)

        return _by_blocks(rescore, rows, _RESCORED_AT_ONCE)


def check_rows_dtype(dtype: str, name: str = "dtype") -> None:
    """Refuses a dtype that rows cannot be stored in.

    Raises:
        ConfigError: it is none of `RowsDtype`; the message calls it `name`.
    """
    known = get_args(RowsDtype)
    require(dtype in known, name, f"one of {', '.join(known)}", dtype)


def _products(queries: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
    return tf.matmul(queries, tf.cast(block, tf.float32), transpose_b=True)


def _gather(variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    # Not `tf.gather(variable, ...)`: that makes TensorFlow copy the whole variable whenever it is
    # read from then on.
    return tf.gather(variable.read_value(), rows)


def _by_blocks(score: Callable[[tf.Tensor], tf.Tensor], rows: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the scores of rows, (M,), computed for `size` of them at a time."""
    total = tf.size(rows)
    # Blocks of one size, so that it compiles at fixed shapes.
    blocks = tf.reshape(tf.pad(rows, [[0, tf.math.floormod(-total, size)]]), [-1, size])
    of_block = tf.TensorSpec([size], tf.float32)
    scores = tf.map_fn(score, blocks, fn_output_signature=of_block, parallel_iterations=1)
    return tf.reshape(scores, [-1])[:total]


def _two_bytes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns both bytes, (N, D) int8 each, and the scales, (N,) float32."""
    first, second = np.empty(vectors.shape, np.int8), np.empty(vectors.shape, np.int8)
    scales = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        block = np.asarray(vectors[part], np.float32)
        first[part], scales[part] = scale_rows(block)
        steps = block / np.where(scales[part] > 0, scales[part], 1)[:, np.newaxis]
        second[part] = np.rint((steps - first[part]) * _STEPS)
    return first, second, scales
