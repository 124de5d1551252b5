"""From one vector a token to one vector a text."""

from __future__ import annotations

from typing import Any, Literal

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tfde")
class Pooling(keras.layers.Layer):
    """Pools a sequence of token vectors into one vector, in float32.

    Args:
        mode: `mean` over the real tokens, or the `first` token.

    Call arguments:
        sequence_output: Token vectors, (B, L, H), any float dtype.
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        pooled_output, (B, H) float32. With `mean`, a row without real tokens gives zeros.

    Raises:
        ValueError: `mode` is neither `mean` nor `first`.

    Source: derived here.
    """

    def __init__(self, mode: Literal["mean", "first"] = "mean", **kwargs: Any) -> None:
        if mode not in ("mean", "first"):
            raise ValueError(f"`mode` must be mean or first. Received: mode={mode!r}")
        super().__init__(autocast=False, **kwargs)
        self.mode = mode

    def call(self, sequence_output: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
        """Returns the pooled output, (B, H) float32."""
        if self.mode == "first":
            return tf.cast(sequence_output[:, 0, :], tf.float32)
        x = tf.cast(sequence_output, tf.float32)
        mask = tf.cast(padding_mask, tf.float32)
        # Selected, not multiplied: whatever stands at padding, even NaN, must not count.
        x = tf.where(mask[:, :, None] > 0, x, 0.0)
        count = tf.reduce_sum(mask, axis=1, keepdims=True)
        return tf.reduce_sum(x, axis=1) / tf.maximum(count, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "mode": self.mode}
