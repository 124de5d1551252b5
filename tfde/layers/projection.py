"""The linear map from the hidden size to the embedding dimension."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tfde")
class Projection(keras.layers.Layer):
    """Projects (B, H) to (B, D), computed in float32 under every dtype policy.

    Args:
        embedding_dim: D.
        use_bias: Whether a bias is added.
        seed: Seed of the initial values; `None` takes Keras's global seed.

    Call arguments:
        pooled_output: (B, H), any float dtype.

    Returns:
        (B, D) float32.

    Raises:
        ValueError: `embedding_dim` is not a positive integer.

    Source: Dong et al. 2022, section 3 (variance scaling with scale 1.0).
    """

    def __init__(
        self, embedding_dim: int, *, use_bias: bool = False, seed: int | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(embedding_dim, int) or embedding_dim < 1:
            raise ValueError(
                "`embedding_dim` must be a positive integer."
                f" Received: embedding_dim={embedding_dim!r}"
            )
        super().__init__(autocast=False, **kwargs)
        self.embedding_dim = embedding_dim
        self.use_bias = use_bias
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates `kernel` (H, D) and, if asked, `bias` (D,)."""
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.embedding_dim),
            initializer=keras.initializers.VarianceScaling(
                scale=1.0, mode="fan_in", distribution="truncated_normal", seed=self.seed
            ),
            name="kernel",
            autocast=False,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.embedding_dim,), initializer="zeros", name="bias", autocast=False
            )

    def call(self, pooled_output: tf.Tensor) -> tf.Tensor:
        """Returns the projection, (B, D) float32."""
        x = tf.matmul(tf.cast(pooled_output, tf.float32), self.kernel.value)
        if self.use_bias:
            x = tf.nn.bias_add(x, self.bias.value)
        return x

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "use_bias": self.use_bias,
            "seed": self.seed,
        }
