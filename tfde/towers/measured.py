"""What a model of texts does with batches of pairs, as Keras names it."""

from __future__ import annotations

import functools
import itertools
import logging
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import require
from tfde.tasks.replicas import share_of_mean
from tfde.towers.fit_loop import (
    SingleBatches,
    Throughput,
    distribute_batches,
    fit_epochs,
    next_step,
    step_function,
)
from tfde.towers.keras_saving import WholeFiles
from tfde.towers.pair_input import Plan
from tfde.towers.pair_order import Order

_LOG = logging.getLogger(__name__)
_SCHEDULE: Any = keras.optimizers.schedules.LearningRateSchedule
_COUNTED = ("epochs", "initial_epoch", "initial_step", "validation_freq")


class Measured(WholeFiles):
    """`evaluate`, `train_on_batch` and `test_on_batch` on whatever a class reads as its pairs.

    `fit` is of each class, for its pairs are its own; `fit_planned` is what all do then.
    """

    prepare_batch: Callable[..., dict[str, Any]]  # a batch -> what a step takes (graph ops)
    test_function: Any = None
    optimizer: Any
    _single: SingleBatches | None = None

    def check_compiled(self) -> None:
        """Refuses a model that is not compiled."""
        raise NotImplementedError

    def batches_of(
        self, x: Any, y: Any, *, name: str, batch_size: int | None, steps: int | None
    ) -> tf.data.Dataset:
        """Returns batches to measure, of all pairs, the last one perhaps smaller."""
        raise NotImplementedError

    def batch_of(self, x: Any, y: Any) -> Mapping[str, Any]:
        """Returns pairs as one batch."""
        raise NotImplementedError

    def new_order(self, initial_epoch: int, initial_step: int) -> Order:
        """Returns the order of pairs for a `fit`.

        One that goes on at an epoch or step has that of the last. A new one has another: a loop of
        them would else leave out the same pairs each time.
        """
        goes_on = initial_epoch or initial_step
        return Order(self.order_seed if goes_on else int(self.optimizer.iterations.numpy()))

    def fit_planned(
        self,
        plan: Plan,
        order: Order,
        *,
        pairs_per_batch: int | None,
        held_out: tf.data.Dataset | None,
        validation_freq: int,
        callbacks: Any,
        verbose: str | int,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains on planned batches, with `pairs_per_s` and `val_...` in the logs.

        Args:
            plan: Of `plan_fit`.
            order: Of the pairs in it.
            pairs_per_batch: For the rate; `None`: no rate.
            held_out: What `batches_of` gave of the validation's pairs; `None`: no validation.
            validation_freq: As in Keras.
            callbacks: One or a list, as in Keras.
            verbose: As in Keras.
            options: Of `prepare_batch`.
        """
        _tell_rate_of_zero(self.optimizer, plan)
        given = keras.tree.flatten(callbacks) if callbacks else []
        if pairs_per_batch is not None:
            given = [Throughput(pairs_per_batch), *given]
        prepare = functools.partial(self.prepare_batch, **options)
        validate = None
        if held_out is not None:
            validate = functools.partial(self.measure, held_out, **options)
        return fit_epochs(
            self,
            lambda epoch, done: distribute_batches(
                plan.batches(epoch, done), prepare, self.distribute_strategy
            ),
            epochs=plan.epochs,
            initial_epoch=plan.initial_epoch,
            steps=plan.steps,
            validate=validate,
            validation_freq=validation_freq,
            callbacks=given,
            verbose=verbose,
            order=order,
        )

    def _layer_losses(self) -> tf.Tensor:
        """Returns this replica's share of what layers add: regularizers' and `add_loss`' losses."""
        losses = [tf.cast(loss, tf.float32) for loss in self.losses]
        return share_of_mean(tf.add_n(losses)) if losses else tf.constant(0.0)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        verbose: str | int = 0,
        sample_weight: None = None,
        steps: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Returns the loss and the metrics of pairs, means over all of them.

        The loss and the in-batch accuracy of a dual encoder depend on the size of the batches,
        whose texts are each other's negatives.

        Args:
            x: As in `fit`, but no file or directory.
            y: As in `fit`.
            batch_size: As in `fit`.
            verbose: 0: nothing is shown; else the values in one line, at the end.
            sample_weight: None: pairs have no weights.
            steps: Batches to take; `None`: all.
            callbacks: Keras callbacks.
            return_dict: Name -> value instead of a list; of the loss alone, a number.

        Raises:
            ConfigError: as `fit`; weights.
        """
        refuse_weights(sample_weight=sample_weight)
        check_counts(batch_size=batch_size, steps=steps)
        require(batch_size is None or batch_size >= 1, "batch_size", "at least 1", batch_size)
        self.check_compiled()
        batches = self.batches_of(x, y, name="x", batch_size=batch_size, steps=steps)
        given = keras.tree.flatten(callbacks) if callbacks else []
        listeners = keras.callbacks.CallbackList(given, model=self)
        values = self.measure(batches, listeners=listeners)
        if verbose:
            line = " - ".join(f"{name}: {value:.4f}" for name, value in values.items())
            sys.stdout.write(f"{line}\n")
        return _as_keras(values, return_dict)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: None = None,
        class_weight: None = None,
        return_dict: bool = False,
    ) -> Any:
        """Takes one step on a batch; returns the values so far, since `reset_metrics`, as Keras.

        Args:
            x: Pairs as lists or columns, or a batch that `tfde.pairs(...)` yields.
            y: As in `fit`.
            sample_weight: None: pairs have no weights.
            class_weight: None.
            return_dict: As of `evaluate`.

        Raises:
            ConfigError: weights; `x` is none of these; the model is not compiled.
        """
        refuse_weights(sample_weight=sample_weight, class_weight=class_weight)
        self.check_compiled()
        self.make_train_function()
        return self._on_batch(x, y, self.train_function, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: None = None, return_dict: bool = False
    ) -> Any:
        """Measures a batch; arguments and result as of `train_on_batch`."""
        refuse_weights(sample_weight=sample_weight)
        self.check_compiled()
        return self._on_batch(x, y, self._make_test_function(), return_dict)

    def measure(
        self,
        batches: tf.data.Dataset,
        *,
        listeners: keras.callbacks.CallbackList | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Returns name -> value over batches.

        Args:
            batches: Of `batches_of`.
            listeners: Callbacks that hear of each batch, as in Keras.
            options: Of `prepare_batch`.
        """
        listeners = listeners or keras.callbacks.CallbackList([], model=self)
        prepare = functools.partial(self.prepare_batch, **options)
        iterator = iter(distribute_batches(batches, prepare, self.distribute_strategy))
        self.stop_evaluating = False  # Keras' own, which a callback may set
        test_function = self._make_test_function()
        self.reset_metrics()
        logs: dict[str, Any] = {}
        listeners.on_test_begin()
        for step in itertools.count():
            listeners.on_test_batch_begin(step)
            if (found := next_step(test_function, iterator)) is None:
                break
            logs = found
            listeners.on_test_batch_end(step, logs)
            if self.stop_evaluating:
                break
        require(bool(logs), "x", "one or more batches", "none")
        values = {name: float(value) for name, value in logs.items()}
        listeners.on_test_end(values)
        return values

    def _on_batch(self, x: Any, y: Any, function: Any, return_dict: bool) -> Any:
        batch = self.batch_of(x, y)
        if self._single is None:
            self._single = SingleBatches(batch, self.prepare_batch, self.distribute_strategy)
        values = {name: float(value) for name, value in function(self._single(batch)).items()}
        return _as_keras(values, return_dict)

    def _make_test_function(self) -> Any:
        if self.test_function is None:
            self.test_function = step_function(self, self.test_step)
        return self.test_function


def _tell_rate_of_zero(optimizer: Any, plan: Plan) -> None:
    """Warns where the schedule of the learning rate ends before the training does."""
    schedule: Any = getattr(
        getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None
    )
    if plan.steps is None or not isinstance(schedule, _SCHEDULE):
        return
    done = int(optimizer.iterations.numpy())
    last = done + plan.steps * (plan.epochs - plan.initial_epoch)
    if last > done + 1 and not float(schedule(last - 1)):
        ends = getattr(schedule, "decay_steps", "fewer steps")
        _LOG.warning(
            "the learning rate is 0 before the training ends, after which nothing is learned:"
            " the schedule's decay_steps should be %d, its last step. Received: %s",
            last,
            ends,
        )


def _as_keras(values: dict[str, float], return_dict: bool) -> Any:
    found = list(values.values())
    return values if return_dict else found if len(found) > 1 else found[0]


def refuse_weights(**weights: Any) -> None:
    """Refuses weights of pairs by their names, but for `None`."""
    for name, given in weights.items():
        require(given is None, name, "None: pairs have no weights", given)


def refuse_callbacks(callbacks: Any) -> None:
    """Refuses callbacks of `predict`."""
    require(not callbacks, "callbacks", "None: `predict` calls none", callbacks)


def check_counts(**counts: Any) -> None:
    """Refuses what is no integer, and `None` where it has no meaning, by its name."""
    for name, value in counts.items():
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        absent = value is None and name not in _COUNTED
        require(absent or whole, name, "an integer", value)


def check_fit_words(
    *,
    shuffle: Any,
    validation_split: float = 0.0,
    sample_weight: Any = None,
    class_weight: Any = None,
    **counts: Any,
) -> None:
    """Refuses what Keras' `fit` has and the `fit` of pairs has not.

    Args:
        shuffle: As of `fit`, like all that follow.
        validation_split: 0.
        sample_weight: None.
        class_weight: None.
        counts: Integers by their names.

    Raises:
        ConfigError: weights; a share of the data to measure on; `shuffle` is no bool; a number
            that is no integer, or one of a validation below 1.
    """
    refuse_weights(sample_weight=sample_weight, class_weight=class_weight)
    check_counts(**counts)
    require(isinstance(shuffle, bool), "shuffle", "True or False", shuffle)
    rule = "0: give the pairs to measure on as `validation_data`"
    require(not validation_split, "validation_split", rule, validation_split)
    for name in ("validation_batch_size", "validation_freq"):
        value = counts.get(name)
        require(value is None or value >= 1, name, "at least 1", value)
