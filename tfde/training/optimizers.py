"""The optimizers of the papers, with their learning rates."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.argument_types import typed
from tfde.config.optimizer import OptimizerConfig
from tfde.errors import ConfigError, require

_LAYER, _ON_TOP = re.compile(r"layer_(\d+)/"), re.compile(r"(^|/)top/")


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
    layer_decay: float = 1.0,
    start_decay: float = 0.0,
) -> keras.optimizers.Optimizer:
    """Returns AdamW, with linear decay to 0 or at a constant rate; biases and norms stay whole.

    Args:
        learning_rate: Highest rate.
        decay_steps: Steps until the rate is 0; `None`: it stays.
        warmup_steps: Steps of linear growth from 0.
        weight_decay: Share of a weight that a step at rate 1 takes away.
        clip_norm: Largest global norm of the gradients, or `None`.
        epsilon: Added to the root of the second moment.
        layer_decay: As `FusedAdamW`, like the next.
        start_decay: Share of the way back to where it began that a step at rate 1 takes a weight.
    """
    return FusedAdamW(
        LinearDecay(learning_rate, decay_steps=decay_steps, warmup_steps=warmup_steps),
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        undecayed=("bias", "norm", "gamma", "beta", "scale"),
        layer_decay=layer_decay,
        start_decay=start_decay,
    )


def build_optimizer(
    config: OptimizerConfig, *, steps: int, ema_momentum: float | None = None
) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a stage of `steps` batches.

    Args:
        config: What is asked for.
        steps: Of the stage.
        ema_momentum: Of the mean of the weights over steps that it keeps, if it keeps one.

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
        optimizer = adafactor(config.learning_rate, **shared)
    else:
        names = ("weight_decay", "epsilon", "layer_decay", "start_decay")
        shared |= {name: getattr(config, name) for name in names}
        optimizer = adamw(config.learning_rate, **shared)
    if ema_momentum is not None:
        optimizer.use_ema, optimizer.ema_momentum = True, ema_momentum
        # Keras would make the weights their means at the end of `fit`, of which a stage has many.
        optimizer.finalize_variable_values = lambda weights: None
    return optimizer


@contextlib.contextmanager
def averaged_over_steps(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes trained weights their means over steps while a block runs; then they are as before.

    Args:
        optimizer: One that keeps means (`ema_momentum`).

    Source: Polyak and Juditsky 1992; the first step is the first mean, as in Keras.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # in one with a loss scale
    weights = optimizer._trainable_variables
    own = [np.array(keras.ops.convert_to_numpy(weight)) for weight in weights]  # no views of them
    try:
        for weight, mean in zip(weights, optimizer._model_variables_moving_average, strict=True):
            weight.assign(mean)
        yield
    finally:
        for weight, value in zip(weights, own, strict=True):
            weight.assign(value)


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
        layer_decay: The rate of a layer as a share of that of the layer above it, in (0, 1]; as
            `layer_shares` says.
        start_decay: Share of its way back to where training began that a step at rate 1 takes a
            weight: w -= rate * start_decay * (w - w_0). All weights do, whatever their names.
        **kwargs: As Keras' AdamW, such as `global_clipnorm`, the largest norm of all gradients
            together.

    Raises:
        ConfigError: a number outside of its range; `layer_decay` for weights without layers.

    Source: Loshchilov and Hutter 2019, algorithm 2; Clark et al. 2020 (ELECTRA), appendix B, for
        the layers' rates; Li et al. 2018, "Explicit inductive bias for transfer learning", equation
        2 (L2-SP), here decoupled from the gradient as algorithm 2 does with the decay to zero.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        undecayed: Sequence[str] = (),
        layer_decay: float = 1.0,
        start_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        require(0 < layer_decay <= 1, "layer_decay", "in (0, 1]", layer_decay)
        require(start_decay >= 0, "start_decay", "at least 0", start_decay)
        super().__init__(learning_rate, **kwargs)
        self.layer_decay = layer_decay
        self.start_decay = start_decay
        self._rate_shares: list[float] = []
        self._starts: list[Any] = []
        self.undecayed = tuple(undecayed)
        if self.undecayed:
            self.exclude_from_weight_decay(var_names=list(self.undecayed))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "undecayed": list(self.undecayed),
            "layer_decay": self.layer_decay,
            "start_decay": self.start_decay,
        }

    def build(self, variables: list[tf.Variable]) -> None:
        """Makes the moments, and notes where the weights begin."""
        if self.built:
            return
        super().build(variables)
        paths = [variable.path for variable in variables]
        self._rate_shares = layer_shares(paths, self.layer_decay)
        if self.start_decay:
            self._starts = [
                self.add_variable_from_reference(variable, name="start", initializer="zeros")
                for variable in variables
            ]
            with tf.init_scope():  # now, also where a step that is traced builds the optimizer
                for start, variable in zip(self._starts, variables, strict=True):
                    start.assign(variable)

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
        """Does nothing: a weight decays where it is updated, at the rate of its layer."""

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Updates one weight and its two moments."""
        index = self._get_variable_index(variable)
        learning_rate = tf.cast(learning_rate, variable.dtype) * self._rate_shares[index]
        if self.weight_decay and self._use_weight_decay(variable):
            variable.assign_sub(variable * self.weight_decay * learning_rate)
        if self.start_decay:
            way = variable - self._starts[index]
            variable.assign_sub(way * self.start_decay * learning_rate)
        if self.amsgrad or variable.dtype != tf.float32:  # the kernel would round 0.999 to 1
            super().update_step(gradient, variable, learning_rate)
            return
        # Where gradients are accumulated `iterations` is no variable.
        step = tf.cast(keras.ops.convert_to_tensor(self.iterations), tf.float32) + 1.0
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(self.beta_1, step),
            beta2_power=tf.pow(self.beta_2, step),
            lr=learning_rate,
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


def layer_shares(paths: Sequence[str], decay: float) -> list[float]:
    """Returns each weight's share of the learning rate.

    Of L layers, layer l (0-based) has decay**(L - 1 - l), a table of positions that all layers read
    that of the first layer, what embeds tokens decay**L, and what comes after the last layer 1, the
    layers that a DiPair has on top included.

    Args:
        paths: Of weights, as Keras names them in a tower. What embeds tokens has `embed` in its
            path, and no number of a layer.
        decay: In (0, 1]; with 1 every share is 1.

    Raises:
        ConfigError: `decay` is below 1, and no path has the number of a layer.

    Source: Clark et al. 2020, appendix B; that the top layer has the whole rate: derived here.
    """
    if decay == 1:
        return [1.0] * len(paths)
    found = [None if _ON_TOP.search(path) else _LAYER.search(path) for path in paths]
    numbers = [int(match[1]) for match in found if match]
    require(bool(numbers), "layer_decay", "1 for a backbone without layers of numbers", decay)
    top = max(numbers)
    # T5's table of positions is read by all layers, from the first on.
    below = {"embed": top + 1, "relative_table": top}
    shares = []
    for path, match in zip(paths, found, strict=True):
        depth = next((depth for part, depth in below.items() if part in path), 0)
        shares.append(decay ** (top - int(match[1]) if match else depth))
    return shares
