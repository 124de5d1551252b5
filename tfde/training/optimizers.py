"""The optimizers of the papers, with their learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.config.training import OptimizerConfig
from tfde.errors import ConfigError, require


@keras.saving.register_keras_serializable(package="tfde")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear growth from 0 over the warm-up, then linear decay to 0.

    Step t (0-based) of a warm-up of w gets `learning_rate * (t + 1) / w`; after it the rate
    falls on a line that reaches 0 at `decay_steps`.

    Args:
        learning_rate: Highest rate, > 0.
        decay_steps: The step at which the rate is 0, > `warmup_steps`; `None`: it stays.
        warmup_steps: Steps of growth.

    Raises:
        ConfigError: a value is impossible.

    Source: Dong et al. 2022, section 4 (decay); the warm-up is derived here.
    """

    def __init__(
        self, learning_rate: float, *, decay_steps: int | None, warmup_steps: int = 0
    ) -> None:
        require(learning_rate > 0, "learning_rate", "above 0", learning_rate)
        if decay_steps is not None and not 0 <= warmup_steps < decay_steps:
            raise ConfigError(
                "`warmup_steps` must be in [0, decay_steps)."
                f" Received: warmup_steps={warmup_steps}, decay_steps={decay_steps}"
            )
        self.learning_rate = learning_rate
        self.decay_steps = decay_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the rate of a step, scalar float32."""
        step = tf.cast(step, tf.float32)
        growing = (step + 1.0) / max(self.warmup_steps, 1)
        left = tf.ones_like(step)
        if self.decay_steps is not None:
            left = (self.decay_steps - step) / (self.decay_steps - self.warmup_steps)
        share = tf.where(step < self.warmup_steps, growing, tf.clip_by_value(left, 0.0, 1.0))
        return self.learning_rate * share

    def get_config(self) -> dict:
        """Returns the arguments."""
        return {
            "learning_rate": self.learning_rate,
            "decay_steps": self.decay_steps,
            "warmup_steps": self.warmup_steps,
        }


@typed
def adafactor(
    learning_rate: float = 1e-3,
    *,
    decay_steps: int | None,
    warmup_steps: int = 0,
    clip_norm: float | None = 1.0,
) -> keras.optimizers.Optimizer:
    """Returns Adafactor with linear decay to 0, or at a constant rate.

    Args:
        learning_rate: Highest rate; multiplied by each parameter's own scale.
        decay_steps: Steps until the rate is 0; `None`: it stays.
        warmup_steps: Steps of linear growth from 0.
        clip_norm: Largest global norm of the gradients, or `None`.

    Source: Shazeer and Stern 2018; rates of Dong et al. 2022 and Ni et al. 2021.
    """
    return keras.optimizers.Adafactor(
        LinearDecay(learning_rate, decay_steps=decay_steps, warmup_steps=warmup_steps),
        relative_step=False,
        global_clipnorm=clip_norm,
    )


@typed
def adamw(
    learning_rate: float = 2e-5,
    *,
    decay_steps: int | None,
    warmup_steps: int = 0,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = 1e-7,
) -> keras.optimizers.Optimizer:
    """Returns AdamW, with linear decay to 0 or at a constant rate; biases and norms stay whole.

    Args:
        learning_rate: Highest rate.
        decay_steps: Steps until the rate is 0; `None`: it stays.
        warmup_steps: Steps of linear growth from 0.
        weight_decay: Share of a weight that a step at rate 1 takes away.
        clip_norm: Largest global norm of the gradients, or `None`.
        epsilon: Added to the root of the second moment.
    """
    return FusedAdamW(
        LinearDecay(learning_rate, decay_steps=decay_steps, warmup_steps=warmup_steps),
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        undecayed=("bias", "norm", "gamma", "beta", "scale"),
    )


def build_optimizer(config: OptimizerConfig, *, steps: int) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a stage of `steps` batches.

    Raises:
        ConfigError: a value is impossible, or the warm-up takes all steps.
    """
    warmup_steps, rule = config.warmup_steps, f"below the steps of the stage, {steps}"
    require(warmup_steps < steps, "optimizer.warmup_steps", rule, warmup_steps)
    shared: dict[str, Any] = {
        "decay_steps": steps if config.schedule == "linear" else None,
        "warmup_steps": config.warmup_steps,
        "clip_norm": config.clip_norm,
    }
    if config.name == "adafactor":
        return adafactor(config.learning_rate, **shared)
    shared |= {"weight_decay": config.weight_decay, "epsilon": config.epsilon}
    return adamw(config.learning_rate, **shared)


@keras.saving.register_keras_serializable(package="tfde")
class FusedAdamW(keras.optimizers.AdamW):
    """Keras' AdamW with the same results, by one kernel a weight in place of a dozen.

    It matters where the table of token embeddings is half of a small model. The norm that
    clipping looks at is that of the whole gradient: what several tokens of a batch add to one row
    of the table is summed first.

    Args:
        learning_rate: Rate or schedule.
        weight_decay: Share of a weight that a step at rate 1 takes away.
        undecayed: Weights with one of these in their names do not decay. Keras' own
            `exclude_from_weight_decay` is forgotten where an optimizer is saved.
        **kwargs: As Keras' AdamW, such as `global_clipnorm`, the largest norm of all gradients
            together.

    Source: Loshchilov and Hutter 2019, algorithm 2.
    """

    def __init__(
        self, learning_rate: Any = 0.001, *, undecayed: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.undecayed = tuple(undecayed)
        if self.undecayed:
            self.exclude_from_weight_decay(var_names=list(self.undecayed))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "undecayed": list(self.undecayed)}

    def _clip_gradients(
        self, grads: list[tf.Tensor | tf.IndexedSlices | None]
    ) -> list[tf.Tensor | None]:
        if self.global_clipnorm:  # before the table's few rows become a whole table
            grads, _ = tf.clip_by_global_norm(
                [_sum_equal_rows(grad) for grad in grads], self.global_clipnorm
            )
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        return dense if self.global_clipnorm else super()._clip_gradients(dense)

    def _apply_weight_decay(self, variables: list[tf.Variable]) -> None:
        if self.weight_decay:  # Keras subtracts zero from all weights
            super()._apply_weight_decay(variables)

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Updates one weight and its two moments."""
        if self.amsgrad or variable.dtype != tf.float32:  # the kernel would round 0.999 to 1
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations.value + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(self.beta_1, step),
            beta2_power=tf.pow(self.beta_2, step),
            lr=tf.cast(learning_rate, tf.float32),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.cast(gradient, tf.float32),
        )


def _sum_equal_rows(
    gradient: tf.Tensor | tf.IndexedSlices | None,
) -> tf.Tensor | tf.IndexedSlices | None:
    """Returns a gradient that names no row of its weight twice."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
