"""Scaling vectors to length 1, so that a dot product is a cosine."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tfde")
class UnitNorm(keras.layers.Layer):
    """Divides each row by its Euclidean norm, in float32.

    Args:
        epsilon: Lower bound of the squared norm. A zero row stays zero and has a finite gradient.

    Call arguments:
        inputs: (B, D), any float dtype.

    Returns:
        (B, D) float32, rows of norm 1.

    Source: derived here.
    """

    def __init__(self, epsilon: float = 1e-12, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.epsilon = epsilon

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the rows scaled to norm 1, (B, D) float32."""
        return tf.math.l2_normalize(tf.cast(inputs, tf.float32), axis=-1, epsilon=self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "epsilon": self.epsilon}
