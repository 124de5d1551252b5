"""The optimizers of the papers, with their learning rates."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.errors import ConfigError, require
from tfde.recipe import OptimizerConfig
from tfde.training.fused_adamw import FusedAdamW


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
) -> keras.optimizers.Optimizer:
    """Returns AdamW, with linear decay to 0 or at a constant rate; biases and norms stay whole.

    Args:
        learning_rate: Highest rate.
        decay_steps: Steps until the rate is 0; `None`: it stays.
        warmup_steps: Steps of linear growth from 0.
        weight_decay: Share of a weight that a step at rate 1 takes away.
        clip_norm: Largest global norm of the gradients, or `None`.
    """
    optimizer = FusedAdamW(
        LinearDecay(learning_rate, decay_steps=decay_steps, warmup_steps=warmup_steps),
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "norm", "gamma", "beta", "scale"])
    return optimizer


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
    return adamw(config.learning_rate, weight_decay=config.weight_decay, **shared)
