"""A number for each code point, looked up as a graph op."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_PAGE = 256


class CodePointTable(tf.Module):
    """Holds a number for each of the 0x110000 code points: only distinct pages of 256 are kept.

    Args:
        values: The numbers by code point, shape (0x110000,).
    """

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(name="code_point_table")
        pages: dict[bytes, int] = {}
        begins = [
            pages.setdefault(page.tobytes(), len(pages) * _PAGE)
            for page in values.reshape(-1, _PAGE)
        ]
        self._begins = tf.constant(begins, tf.int32)
        self._entries = tf.constant(np.frombuffer(b"".join(pages), values.dtype))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns the number of each code point.

        Args:
            codes: Code points, shape (N,), int32.

        Returns:
            Numbers, shape (N,), of the dtype given.
        """
        begins = tf.gather(self._begins, tf.bitwise.right_shift(codes, 8))
        return tf.gather(self._entries, begins + tf.bitwise.bitwise_and(codes, _PAGE - 1))
