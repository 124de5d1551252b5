"""From the pooled vector to the embedding: linear layers, and unit length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.config.model import DenseConfig

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "identity": tf.identity,
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "sigmoid": tf.sigmoid,
    "silu": tf.nn.silu,
}


@keras.saving.register_keras_serializable(package="tfde")
class Projection(keras.layers.Layer):
    """Projects (B, H) to (B, D) in one or several linear steps, in float32 under every policy.

    Args:
        steps: The linear layers, first to last; D is the size of the last one.
        seed: Seed of the initial values; `None` takes Keras's global seed.

    Call arguments:
        pooled_output: (B, H), any float dtype.

    Returns:
        (B, D) float32.

    Raises:
        ValueError: there is no step.

    Source: Dong et al. 2022, section 3 (variance scaling with scale 1.0).
    """

    def __init__(
        self,
        steps: Sequence[DenseConfig | Mapping[str, Any]],
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not steps:
            raise ValueError("`steps` must hold at least one layer. Received: none")
        super().__init__(autocast=False, **kwargs)
        self.steps = tuple(
            step if isinstance(step, DenseConfig) else DenseConfig(**step) for step in steps
        )
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates `kernel` (H, D) and, if asked, `bias` (D,); later steps' end in `_1`, `_2` ..."""
        rows = int(input_shape[-1])  # type: ignore[arg-type]
        self._kernels: list[keras.Variable] = []
        self._biases: list[keras.Variable | None] = []
        for number, step in enumerate(self.steps):
            ending = f"_{number}" if number else ""
            seed = None if self.seed is None else self.seed + number
            initializer = keras.initializers.VarianceScaling(
                scale=1.0, mode="fan_in", distribution="truncated_normal", seed=seed
            )
            kernel = self._add(f"kernel{ending}", (rows, step.dim), initializer)
            bias = self._add(f"bias{ending}", (step.dim,), "zeros") if step.use_bias else None
            self._kernels.append(kernel)
            self._biases.append(bias)
            rows = step.dim

    def call(self, pooled_output: tf.Tensor) -> tf.Tensor:
        """Returns the projection, (B, D) float32."""
        x = tf.cast(pooled_output, tf.float32)
        for step, kernel, bias in zip(self.steps, self._kernels, self._biases, strict=True):
            x = tf.matmul(x, kernel.value)
            if bias is not None:
                x = tf.nn.bias_add(x, bias.value)
            x = _ACTIVATIONS[step.activation](x)
        return x

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        steps = [dataclasses.asdict(step) for step in self.steps]
        return {**super().get_config(), "steps": steps, "seed": self.seed}

    def _add(self, name: str, shape: tuple[int, ...], initializer: Any) -> keras.Variable:
        weight = self.add_weight(
            shape=shape, initializer=initializer, name=name, dtype="float32", autocast=False
        )
        setattr(self, name, weight)  # TensorFlow's checkpoints find attributes, not lists
        return weight


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
