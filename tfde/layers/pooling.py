"""From one vector a token to one vector a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import keras
import tensorflow as tf

from tfde.config import model as config


@keras.saving.register_keras_serializable(package="tfde")
class Pooling(keras.layers.Layer):
    """Pools a sequence of token vectors into one vector, in float32.

    Args:
        modes: One or several of `first` (token), `max`, `mean`, `mean_sqrt_length` (the sum
            divided by the root of the length), `weighted_mean` (a token at place i, from 1,
            weighs i), `last` (token), all over real tokens. Several stand side by side.
        skipped_tokens: So many tokens at the beginning do not count: the start token and those of
            a prompt. `first` is then the first one after them.

    Call arguments:
        sequence_output: Token vectors, (B, L, H), any float dtype.
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        pooled_output, (B, H * number of modes) float32. A row without tokens that count gives
        zeros; `first` gives its first vector.

    Raises:
        ValueError: an unknown mode, or none.

    Source: derived here; the modes are those of sentence-transformers.
    """

    def __init__(
        self, modes: Sequence[config.Pooling] = ("mean",), *, skipped_tokens: int = 0, **kwargs: Any
    ) -> None:
        known = get_args(config.Pooling)
        if isinstance(modes, str) or not modes or any(mode not in known for mode in modes):
            raise ValueError(
                f"`modes` must be a sequence of {', '.join(known)}. Received: modes={modes!r}"
            )
        super().__init__(autocast=False, **kwargs)
        self.modes = tuple(modes)
        self.skipped_tokens = skipped_tokens

    def call(self, sequence_output: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
        """Returns the pooled output, float32."""
        mask = tf.cast(padding_mask, tf.float32)
        places = tf.range(1, tf.shape(mask)[1] + 1, dtype=tf.float32)[None]
        if self.skipped_tokens:
            mask = tf.where(places > self.skipped_tokens, mask, 0.0)
        counts = mask[:, :, None] > 0
        # Selected, not multiplied: whatever stands at padding, even NaN, must not count.
        x = tf.where(counts, tf.cast(sequence_output, tf.float32), 0.0)
        pooled = []
        for mode in self.modes:
            if mode == "first":
                first = tf.argmax(mask, axis=1)
                pooled.append(tf.gather(tf.cast(sequence_output, tf.float32), first, batch_dims=1))
            elif mode == "max":
                largest = tf.reduce_max(tf.where(counts, x, x.dtype.min), axis=1)
                pooled.append(tf.where(tf.reduce_any(counts, axis=1), largest, 0.0))
            elif mode == "last":
                last = tf.argmax(mask * places, axis=1)
                pooled.append(tf.gather(x, last, batch_dims=1))
            elif mode == "weighted_mean":
                weights = mask * places
                total = tf.reduce_sum(weights, axis=1, keepdims=True)
                weighted = tf.reduce_sum(x * weights[:, :, None], axis=1)
                pooled.append(weighted / tf.maximum(total, 1.0))
            else:
                count = tf.maximum(tf.reduce_sum(mask, axis=1, keepdims=True), 1.0)
                divisor = tf.sqrt(count) if mode == "mean_sqrt_length" else count
                pooled.append(tf.reduce_sum(x, axis=1) / divisor)
        return pooled[0] if len(pooled) == 1 else tf.concat(pooled, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "modes": list(self.modes),
            "skipped_tokens": self.skipped_tokens,
        }
