"""Training of two towers on pairs, on one device or on the replicas of a strategy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.tasks.task import Task
from tfde.text.cut_texts import CutTexts
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.fit_loop import (
    CutReport,
    step_function,
)
from tfde.towers.measured import check_fit_words
from tfde.towers.pair_input import measured_batches, plan_fit, training_batches
from tfde.towers.pair_steps import CUT_COUNTS, PairSteps
from tfde.towers.string_batches import joined, one_batch

_LOG = logging.getLogger(__name__)


class PairTrainer(PairSteps):
    """A model of two towers that learns from pairs; `DualEncoder` says what the towers are.

    Args:
        preprocessor: Texts to token ids, for both towers.
        **kwargs: As `PairSteps`.
    """

    def __init__(self, preprocessor: TextPreprocessor, **kwargs: Any) -> None:
        super().__init__(preprocessor, **kwargs)
        self._cut_lengths = (0, 0)
        self._cut_counts: Any = np.zeros((2, 4))

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        validation_data: Any = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        validation_split: float = 0.0,
        shuffle: bool = True,
        sample_weight: None = None,
        class_weight: None = None,
        steps: int | None = None,
        initial_step: int = 0,
        preprocessor: TextPreprocessor | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on pairs; tokenization is mapped over them here.

        Args:
            x: What `tfde.towers.pair_input.training_batches` takes: `tfde.pairs(...)`, a list of
                `(query, document)`, a pandas frame, a `tf.data.Dataset` of strings, a
                `keras.utils.PyDataset` or a generator of batches, or the queries of `y`.
            y: The document of each query, where `x` is a list or array of queries.
            batch_size: Pairs in a batch, where `x` has none of its own; `None`: 32.
            epochs: The epoch at which training ends.
            steps_per_epoch: Batches an epoch, one after another through all the data, which is
                read again where it ends; `None`: as many as all pairs fill. What is left of
                pairs in a list, a table or a `tfde.pairs` that fills no batch is left out, other
                pairs in each epoch where they are shuffled.
            initial_epoch: The epoch at which it begins; with `tfde.pairs` the batches are those
                that this epoch has in one `fit` of all.
            validation_data: As `x`: `val_loss` and the like stand in the logs of an epoch. How
                well the model retrieves is measured by `tfde.RetrievalValidation`, a callback.
            validation_steps: Batches of it; `None` for all.
            validation_batch_size: Pairs in a batch of it; `None`: as `batch_size`.
            validation_freq: Epochs from one validation to the next.
            validation_split: 0: what is measured stands in `validation_data`.
            shuffle: Whether pairs in memory, and the batches of a `PyDataset`, get another order
                in each epoch, and in each `fit` that does not go on at an epoch or step; a
                `tf.data.Dataset` and a generator have their own, as in Keras.
            sample_weight: None: pairs have no weights.
            class_weight: None.
            steps: In place of epochs: train up to this step, as one epoch; it counts from the
                beginning of the data, which is read again where it ends.
            initial_step: First batch to take, to go on where an earlier run stopped; with a
                `tf.data.Dataset` it needs `steps`.
            preprocessor: Texts to token ids in this training, where texts are cut elsewhere than
                the model cuts them; `None` takes the model's own.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Under a strategy (the model and its optimizer made in its scope) the rows of each batch are
        shared out evenly among its replicas, and a step is the one of a single device.

        Raises:
            ConfigError: there is nothing left to train, batches cannot be shared out evenly,
                `x` is no pairs, an argument asks for weights, or the model is not compiled.
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
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
            steps=steps,
            initial_step=initial_step,
        )
        task = self.compiled_task()
        replicas = self.distribute_strategy.num_replicas_in_sync
        order = self.new_order(initial_epoch, initial_step)
        x = training_batches(
            joined(x, y), batch_size=batch_size, shuffle=shuffle, replicas=replicas, order=order
        )
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
            held_out = self.batches_of(
                validation_data,
                None,
                name="validation_data",
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
            )
        halves = {weight.dtype for weight in self.trainable_weights} & {"bfloat16", "float16"}
        for dtype in sorted(halves):
            _LOG.warning(
                'weights in %s round small updates away; dtype="mixed_%s" holds them in float32',
                dtype,
                dtype,
            )
        self.note_task(task)
        text = (preprocessor or self.preprocessor).text_config
        self._cut_lengths = (text.query_max_length_tokens, text.document_max_length_tokens)
        self._cut_counts = np.zeros((2, 4))
        history = self.fit_planned(
            plan,
            order,
            pairs_per_batch=getattr(x, "batch_size", None),
            held_out=held_out,
            validation_freq=validation_freq,
            callbacks=[callbacks or [], CutReport()],
            verbose=verbose,
            preprocessor=preprocessor,
        )
        losses = history.history.get("loss", ())
        if losses and not any(losses):
            _LOG.warning(
                "nothing was learned, the loss was 0 in every step: there was no negative to learn"
                " from (a batch of one pair has none; MarginTask takes given ones with a score)"
            )
        return history

    def check_compiled(self) -> None:
        """Refuses a model that is not compiled."""
        self.compiled_task()

    def batches_of(
        self, x: Any, y: Any, *, name: str, batch_size: int | None, steps: int | None
    ) -> tf.data.Dataset:
        """Returns batches to measure a loss on, as `measured_batches` says."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        x = joined(x, y)
        return measured_batches(x, name, batch_size=batch_size, steps=steps, replicas=replicas)

    def batch_of(self, x: Any, y: Any) -> Mapping[str, Any]:
        """Returns pairs as one batch, as `one_batch` says."""
        return one_batch(joined(x, y), self.distribute_strategy.num_replicas_in_sync)

    def note_task(self, task: Task) -> None:
        """Notes what a task leaves in the model beside its weights: nothing, here."""

    def trained_texts(self) -> list[CutTexts]:
        """Returns how many texts the last `fit` read, and how many of them it cut at which length.

        A text counts as often as it was read.
        """
        kinds = zip(("queries", "documents"), self._cut_lengths, strict=True)
        rows = np.round(self._cut_counts).astype(np.int64).tolist()
        return [CutTexts(*kind, *row) for kind, row in zip(kinds, rows, strict=True)]

    def make_train_function(self, force: bool = False) -> None:
        """Makes `train_function`, an iterator of batches -> logs of one step."""
        if force or getattr(self, "train_function", None) is None:
            step = step_function(self, self._counted_step)
            replicas = self.distribute_strategy.num_replicas_in_sync

            def take(iterator: Any) -> dict[str, tf.Tensor]:
                logs = step(iterator)
                # Nobody waits for the number: it is added on the device.
                self._cut_counts += replicas * tf.cast(logs.pop(CUT_COUNTS), tf.float64)
                return logs

            self.train_function = take

    def _counted_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        # Replicas get batches whose shapes TensorFlow has forgotten.
        counts = tf.ensure_shape(tf.cast(data[CUT_COUNTS], tf.float32), (2, 4))
        return {**self.train_step(data), CUT_COUNTS: counts}
