"""A weight that is stored in 8 bits and unpacked once, when a SavedModel is loaded."""

from __future__ import annotations

import hashlib

import numpy as np
import tensorflow as tf

from tfde.data.scaled_rows import scale_rows


class Int8Weight(tf.saved_model.experimental.TrackableResource):
    """A matrix as 8-bit integers with a scale for each row or column.

    A resource, not a variable: a SavedModel keeps a variable's values as they are used, but makes
    a resource's anew by running its initializer. So the file holds the integers, memory holds the
    unpacked values, and a call costs nothing more. Every entry is off by at most half a step,
    1/254 of the largest of its row or column, and by the rounding of `dtype`.

    Args:
        value: The matrix, (R, C) float.
        dtype: What it is unpacked to.
        by_row: Whether each row has a scale (tables of embeddings) or each column (kernels).

    Source: derived here.
    """

    def __init__(self, value: np.ndarray, dtype: str, *, by_row: bool) -> None:
        super().__init__()
        value = np.asarray(value, np.float32)
        integers, scales = scale_rows(value if by_row else value.T)
        self._integers = integers if by_row else integers.T
        self._scale = scales[:, np.newaxis] if by_row else scales[np.newaxis]
        self._dtype = tf.as_dtype(dtype)
        # A process holds resources of equal names once: equal names must mean equal contents.
        contents = self._integers.tobytes() + self._scale.tobytes() + dtype.encode()
        self._name = f"int8_weight_{hashlib.sha256(contents).hexdigest()[:32]}"
        if tf.executing_eagerly():
            self._initialize()

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(
            dtype=self._dtype, shape=self._integers.shape, shared_name=self._name
        )

    def _initialize(self) -> None:
        value = tf.cast(tf.constant(self._integers), tf.float32) * tf.constant(self._scale)
        tf.raw_ops.AssignVariableOp(
            resource=self.resource_handle, value=tf.cast(value, self._dtype)
        )

    def read(self) -> tf.Tensor:
        """Returns the unpacked matrix, (R, C)."""
        value = tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._integers.shape)
