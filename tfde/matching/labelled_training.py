"""What all that learns from labelled pairs does with them: batches to train on and to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.data.pairs.labelled import LabelledBatches, LabelledPairs
from tfde.errors import require
from tfde.matching.labelled_input import LabelRules, batched, columns_of, labelled_strings
from tfde.tasks.replicas import share_of_mean, sum_gradients
from tfde.towers.fit_loop import step_function
from tfde.towers.measured import Measured, check_fit_words
from tfde.towers.pair_input import check_rows, plan_fit
from tfde.towers.pair_order import Order

_BATCH_SIZE = 32  # Keras' own


class LabelledTraining(Measured):
    """A model that learns from pairs with labels, or from groups of pairs of which one is right.

    Attributes:
        group_size: Pairs of a group; 1: each stands alone.
        untrained: Whether a checkpoint's encoder has a new head on it that has learned nothing,
            which nobody has been told of.
    """

    group_size: int = 1
    untrained: bool = False
    _sums = False  # whether the loss of a batch is a sum
    _own_metrics: Callable[[], list[keras.metrics.Metric]] = staticmethod(list)

    def label_rules(self) -> LabelRules:
        """Returns what labels the model learns from."""
        raise NotImplementedError

    def pairs_of(self, x: Any, y: Any) -> LabelledPairs:
        """Returns what `fit` takes as pairs in memory."""
        return self.label_rules().of_pairs(x, y)

    def batches_of(
        self, x: Any, y: Any, *, name: str, batch_size: int | None, steps: int | None
    ) -> tf.data.Dataset:
        """Returns batches to measure, of all pairs, the last one perhaps smaller."""
        require(steps is None or steps >= 1, "steps", "at least 1", steps)
        if isinstance(x, LabelledBatches | tf.data.Dataset):
            require(y is None, "y", "None: the data has the labels", y)
        if isinstance(x, LabelledBatches):
            x, batch_size = x.pairs, x.batch_size
        if isinstance(x, tf.data.Dataset):
            batches = self._streamed(x, batch_size)
        else:
            pairs, size = self.pairs_of(x, y), self._size(batch_size)
            self._check_rows(name, min(size, len(pairs)), len(pairs) % size or size)
            batches = batched(columns_of(pairs), size)
        endless = int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY and steps is None
        require(not endless, name, "a dataset that ends, or one with a number of steps", x)
        return batches if steps is None else batches.take(steps)

    def batch_of(self, x: Any, y: Any) -> Mapping[str, Any]:
        """Returns pairs as one batch."""
        pairs = self.pairs_of(x, y)
        self._check_rows("x", len(pairs), len(pairs))
        return columns_of(pairs)

    def train_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Takes one step on a batch.

        Args:
            data: What `prepare_batch` returned; under a strategy, this replica's rows.

        Returns:
            The loss so far, its parts and the metrics, means over these rows.
        """
        taught, weights = self._ask_teachers(data), self.trainable_weights
        with tf.GradientTape() as tape:
            share = self._share_of_loss(data, taught, training=True)
            scaled = self.optimizer.scale_loss(share)
        self.optimizer.apply(sum_gradients(tape.gradient(scaled, weights)), weights)
        return self.get_metrics_result()

    def test_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the loss so far, its parts and the metrics; arguments as of `train_step`."""
        self._share_of_loss(data, self._ask_teachers(data), training=False)
        return self.get_metrics_result()

    def _share_of_loss(self, data: Mapping[str, Any], taught: Any, *, training: bool) -> tf.Tensor:
        """Returns this replica's share of the loss of a batch, and counts it."""
        self.check_compiled()
        replicas = self.distribute_strategy.num_replicas_in_sync
        rows = tf.shape(data["label"])[0]
        loss = self._mean_loss(data, taught, training=training)
        if self._sums:
            loss *= tf.cast(rows * replicas, loss.dtype)
        share = share_of_mean(loss) + self._layer_losses()
        self._loss_tracker.update_state(share * replicas, sample_weight=rows)
        return share

    def _ask_teachers(self, data: Mapping[str, Any]) -> Any:
        """Returns what teachers say of a batch, outside the tape; `None`: there are none."""

    def _mean_loss(self, data: Mapping[str, Any], taught: Any, *, training: bool) -> tf.Tensor:
        """Returns the mean loss of these rows, without the layers' own, and counts the metrics."""
        raise NotImplementedError

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Loads all weights, as in Keras, of a model built alike."""
        super().load_weights(filepath, skip_mismatch, **kwargs)
        self.untrained = False

    def check_trains(self) -> None:
        """Refuses a model that cannot train."""

    def make_train_function(self, force: bool = False) -> None:
        """Makes `train_function`, an iterator of batches -> logs of one step."""
        self.check_trains()
        self.untrained = False
        if force or getattr(self, "train_function", None) is None:
            self.train_function = step_function(self, self.train_step)

    def count_metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> None:
        """Counts what `compile` was given as metrics, in the form of `logit_metrics`."""
        for metric in self._own_metrics():
            metric.update_state(labels, tf.stop_gradient(logits))

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns the loss so far, its parts and the metrics."""
        return self.get_metrics_result()

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        steps: int | None = None,
        initial_step: int = 0,
        validation_data: Any = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        validation_split: float = 0.0,
        shuffle: bool = True,
        sample_weight: None = None,
        class_weight: None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on labelled pairs; tokenization is mapped over them here.

        Args:
            x: What `tfde.matching.labelled_input.labelled_pairs` takes: a list of `(first, second,
                label)`, a pandas frame, or with `y` a list of `(first, second)`; or a
                `tf.data.Dataset`, as `labelled_strings` says. What is in memory is shuffled. For a
                trainer with objective `ranking`, rows `(first, right one, wrong one, ...)` as
                `tfde.pairs` takes them, of which `group_size` - 1 wrong ones are taken.
            y: The labels of `x`, where it has none: a number or name each, of one label 0 or 1.
            batch_size: Pairs in a batch, where `x` has none of its own, a multiple of
                `group_size`; `None`: 32 or the next below. Where replicas share batches, those that
                fill none wait for another epoch.
            epochs: The epoch at which training ends.
            steps_per_epoch: Batches an epoch; `None`: all pairs.
            initial_epoch: The epoch at which it begins.
            steps: In place of epochs: up to this step, counted from the beginning of the data.
            initial_step: First batch to take, to go on where an earlier run stopped.
            validation_data: As `x`, or `(x, y)`: `val_loss` and the like stand in the logs.
            validation_steps: Batches of it; `None` for all.
            validation_batch_size: Pairs in a batch of it; `None`: as `batch_size`.
            validation_freq: Epochs from one validation to the next.
            validation_split: 0: what is measured stands in `validation_data`.
            shuffle: Whether pairs in memory get another order in each epoch, and in each `fit`
                that does not go on at an epoch or step; what comes in batches has its own order,
                as in Keras.
            sample_weight: None: pairs have no weights.
            class_weight: None.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Raises:
            ConfigError: there is nothing to train; `x` is none of these; groups of its pairs have
                another size; weights; batches cannot be shared out among replicas; the model is not
                compiled.
            DataError: a row breaks a rule.
        """
        check_fit_words(
            shuffle=shuffle,
            validation_split=validation_split,
            sample_weight=sample_weight,
            class_weight=class_weight,
            batch_size=batch_size,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=initial_epoch,
            steps=steps,
            initial_step=initial_step,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        )
        self.check_compiled()
        order = self.new_order(initial_epoch, initial_step)
        x = self._training_batches(x, y, batch_size=batch_size, shuffle=shuffle, order=order)
        plan = plan_fit(
            x,
            order,
            epochs=epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            steps=steps,
            initial_step=initial_step,
        )
        held_out = None
        if validation_data is not None:
            both = isinstance(validation_data, tuple) and len(validation_data) == 2
            parts = validation_data if both else (validation_data, None)
            size = validation_batch_size or batch_size
            held_out = self.batches_of(
                *parts, name="validation_data", batch_size=size, steps=validation_steps
            )
        return self.fit_planned(
            plan,
            order,
            pairs_per_batch=getattr(x, "batch_size", None),
            held_out=held_out,
            validation_freq=validation_freq,
            callbacks=callbacks,
            verbose=verbose,
        )

    def _training_batches(
        self, x: Any, y: Any, *, batch_size: int | None, shuffle: bool, order: Order
    ) -> LabelledBatches | tf.data.Dataset:
        if isinstance(x, LabelledBatches | tf.data.Dataset):
            require(y is None, "y", "None: `x` has the labels", y)
        if isinstance(x, tf.data.Dataset):
            return self._streamed(x, batch_size)
        if isinstance(x, LabelledBatches):
            require(batch_size is None, "batch_size", "None: `x` has its own", batch_size)
        else:
            pairs, whole = self.pairs_of(x, y), self.distribute_strategy.num_replicas_in_sync == 1
            size = self._size(batch_size)
            options = {"seed": order.seed, "shuffle": shuffle, "whole": whole}
            x = order.of(LabelledBatches(pairs, batch_size=size, **options))
        rule = f"{self.group_size}, as the trainer's"
        require(x.group_size == self.group_size, "group_size", rule, x.group_size)
        self._check_rows("x", x.batch_size, x.smallest_batch)
        return x

    def _streamed(self, x: tf.data.Dataset, batch_size: int | None) -> tf.data.Dataset:
        require(self.group_size == 1, "x", "rows in memory, for groups of pairs", x)
        replicas = self.distribute_strategy.num_replicas_in_sync
        size = self._size(batch_size)
        return labelled_strings(x, self.label_rules(), batch_size=size, replicas=replicas)

    def _size(self, batch_size: int | None) -> int:
        group = self.group_size
        size = max(_BATCH_SIZE // group, 1) * group if batch_size is None else batch_size
        require(size >= 1, "batch_size", "at least 1", batch_size)
        require(size % group == 0, "batch_size", f"a multiple of {group} pairs of a group", size)
        return size

    def _check_rows(self, name: str, batch_size: int, last: int) -> None:
        replicas = self.distribute_strategy.num_replicas_in_sync
        check_rows(name, batch_size, last, replicas, group_size=self.group_size)
