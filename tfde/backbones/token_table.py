"""The token embedder of T5 and of bag of words: one table."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.seeded_layer import SeededLayer


@keras.saving.register_keras_serializable(package="tfde")
class TokenTable(SeededLayer):
    """A table of token embeddings, then dropout.

    Args:
        vocabulary_size: Rows of the table.
        hidden_dim: Its columns, H.
        deviation: Standard deviation of the random weights.
        dropout: Rate.
        seed: Seed of weights and dropout; `None` takes Keras's global seed.

    Call arguments:
        token_ids: (B, L) int32.

    Returns:
        (B, L, H) in the compute dtype.

    Source: Raffel et al. 2020, section 2.1 (T5); Chang et al. 2020, section 4.4 (bag of words).
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        *,
        deviation: float,
        dropout: float,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.deviation = deviation

    def build(self, input_shape: Any) -> None:
        """Creates `token_table` (V, H)."""
        initializer = keras.initializers.RandomNormal(0.0, self.deviation, seed=next(self._seeds))
        self._add("token_table", (self.vocabulary_size, self.hidden_dim), initializer)

    def call(self, token_ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the embedded tokens, (B, L, H)."""
        x = tf.cast(tf.gather(self.token_table.value, token_ids), self.compute_dtype)
        return self._drop(x, training)
