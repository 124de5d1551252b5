"""Training of two towers on pairs, on one device or on the replicas of a strategy."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.data.pairs.batches import PairBatches
from tfde.errors import ConfigError, require
from tfde.tasks.gradient_cache import cached_gradients, random_states
from tfde.tasks.replicas import (
    share_of_mean,
    sum_gradients,
)
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.score_blocks import loss_over_replicas
from tfde.tasks.task import Rows, Task, candidate_texts
from tfde.text.cut_texts import CutTexts
from tfde.text.preprocessor import TextPreprocessor, cut_counts
from tfde.towers.fit_loop import (
    CutReport,
    Throughput,
    compile_in_scope,
    distribute_batches,
    endless,
    fit_epochs,
    step_function,
)

_LOG = logging.getLogger(__name__)

# With a chunk size, scores are computed for so many queries at once: 32 MB for 8,192 documents.
_SCORE_ROWS = 1024
_CUT = "cut_counts"


class PairTrainer(keras.Model):
    """A model of two towers that learns from pairs; `DualEncoder` says what the towers are.

    Args:
        preprocessor: Texts to token ids, for both towers.
        name: The model's name.
        dtype: Keras dtype policy of the towers' backbones: `mixed_float16` needs a loss scale.
        accuracy: What the share of rows that the model gets right is called in logs.
    """

    query_tower: keras.Model
    document_tower: keras.Model

    def __init__(
        self,
        preprocessor: TextPreprocessor,
        *,
        name: str,
        dtype: keras.DTypePolicy,
        accuracy: str = "in_batch_accuracy",
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.preprocessor = preprocessor
        self.task: Task | None = None
        self.chunk_size: int | None = None
        self._accuracy = keras.metrics.Mean(name=accuracy)
        self._reset: Callable[[], None] | None = None
        self._cut_lengths = (0, 0)
        self._cut_counts: Any = np.zeros((2, 4))

    def compile(
        self,
        optimizer: Any = "adam",
        *,
        task: Task | None = None,
        chunk_size: int | None = None,
        jit_compile: bool = False,
        run_eagerly: bool = False,
    ) -> None:
        """Sets optimizer and task.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adafactor(1e-3, decay_steps=20_000)`.
            task: The loss; `None` takes `RetrievalTask()`.
            chunk_size: How many texts a tower works on at once, so that memory does not grow with
                the batch (the gradient cache, see `tfde.tasks.gradient_cache`); every text is
                embedded twice. `None` for the whole batch at once.
            jit_compile: XLA. Off by default: lengths differ from batch to batch, and every new
                shape would be compiled anew.
            run_eagerly: For debugging.

        Raises:
            ConfigError: `chunk_size` is below 1, or asked for together with XLA, which needs
                shapes that do not depend on the texts; XLA is asked for with several replicas.
        """
        require(chunk_size is None or chunk_size >= 1, "chunk_size", "at least 1", chunk_size)
        if chunk_size is not None and jit_compile:
            raise ConfigError(
                "`chunk_size` cuts each chunk to its longest text, which XLA cannot: set"
                " `jit_compile` to false."
                f" Received: chunk_size={chunk_size}, jit_compile={jit_compile}"
            )
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and jit_compile:
            raise ConfigError(
                f"`jit_compile` must be false with {replicas} replicas, whose exchanges XLA cannot"
                " compile (a TPU's strategy compiles by itself). Received: jit_compile=True"
            )
        self.task = task or RetrievalTask()
        self.chunk_size = chunk_size
        self._reset = None
        options = {"jit_compile": jit_compile, "run_eagerly": run_eagerly}
        compile_in_scope(self, super().compile, optimizer=optimizer, **options)

    def fit(
        self,
        x: PairBatches | tf.data.Dataset,
        *,
        epochs: int = 1,
        steps: int | None = None,
        initial_step: int = 0,
        preprocessor: TextPreprocessor | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on pairs; tokenization is mapped over them here.

        Args:
            x: `tfde.pairs(...)`, or a `tf.data.Dataset` of batches with the same keys.
            epochs: Passes over the pairs.
            steps: Train up to this step instead; it counts from the beginning of the data, which
                is read again where it ends.
            initial_step: First batch to take, to go on where an earlier run stopped; with a
                `tf.data.Dataset` it needs `steps`.
            preprocessor: Texts to token ids in this training, where texts are cut elsewhere than
                the model cuts them; `None` takes the model's own.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Under a strategy (the model and its optimizer made in its scope) the rows of each batch are
        shared out evenly among its replicas, and a step is the one of a single device.

        Raises:
            ConfigError: there is nothing left to train, or batches cannot be shared out evenly.
        """
        batches, given = x, callbacks or ()
        if isinstance(x, PairBatches):
            self._check_rows(x)
            total = steps if steps is not None else epochs * x.steps_per_epoch
            rule = f"below the {total} steps to train"
            require(initial_step < total, "initial_step", rule, initial_step)
            batches = endless(x.dataset(start_step=initial_step))
            given = [Throughput(x.batch_size), *given]
            if steps is None and initial_step == 0:
                steps = x.steps_per_epoch
            else:
                epochs, steps = 1, total - initial_step
        elif steps is not None or initial_step:
            total = steps or 0
            rule = f"below `steps`, {steps}"
            require(0 <= initial_step < total, "initial_step", rule, initial_step)
            batches = x.repeat().skip(initial_step)
            epochs, steps = 1, total - initial_step
        halves = {weight.dtype for weight in self.trainable_weights} & {"bfloat16", "float16"}
        for dtype in sorted(halves):
            _LOG.warning(
                'weights in %s round small updates away; dtype="mixed_%s" holds them in float32',
                dtype,
                dtype,
            )
        if self.task is not None:
            self.note_task(self.task)
        text = (preprocessor or self.preprocessor).text_config
        self._cut_lengths = (text.query_max_length_tokens, text.document_max_length_tokens)
        self._cut_counts = np.zeros((2, 4))
        return fit_epochs(
            self,
            distribute_batches(
                batches,
                functools.partial(self.prepare_batch, preprocessor=preprocessor),
                self.distribute_strategy,
            ),
            epochs=epochs,
            steps=steps,
            callbacks=[*given, CutReport()],
            verbose=verbose,
        )

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
                self._cut_counts += replicas * tf.cast(logs.pop(_CUT), tf.float64)
                return logs

            self.train_function = take

    def _counted_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        # Replicas get batches whose shapes TensorFlow has forgotten.
        counts = tf.ensure_shape(tf.cast(data[_CUT], tf.float32), (2, 4))
        return {**self.train_step(data), _CUT: counts}

    def prepare_batch(
        self, batch: Mapping[str, tf.Tensor], *, preprocessor: TextPreprocessor | None = None
    ) -> dict[str, tf.Tensor]:
        """Tokenizes a batch of `tfde.pairs` (graph ops); given negatives follow the positives.

        Args:
            batch: Strings and keys, as `PairDataset.dataset` yields them.
            preprocessor: As in `fit`.

        Returns:
            Token ids and masks as `call` takes them, `positive_keys` (B, P) and `candidate_keys`
            (C,) int64, `cut_counts` (2, 4) int64, what the function of this name counts of queries
            and of documents, and what the task prepares.
        """
        titles, texts, keys = (candidate_texts(batch, name) for name in ("title", "text", "key"))
        preprocessor = preprocessor or self.preprocessor
        query_ids, query_mask, query_lengths = preprocessor.measured_queries(batch["query"])
        document_ids, document_mask, lengths = preprocessor.measured_documents(titles, texts)
        prepared = {
            "query_token_ids": query_ids,
            "query_padding_mask": query_mask,
            "document_token_ids": document_ids,
            "document_padding_mask": document_mask,
            "positive_keys": batch["positive_keys"],
            "candidate_keys": keys,
            _CUT: tf.stack([cut_counts(query_lengths), cut_counts(lengths, keys != 0)]),
        }
        if self.task is not None:
            replicas = self.distribute_strategy.num_replicas_in_sync
            prepared |= self.task.prepare(batch, replicas=replicas)
        return prepared

    def reset_metrics(self) -> None:
        """Forgets the loss and accuracy so far."""
        if self._reset is None:
            # Each replica its own: from outside, processes would have to meet for it.
            reset, strategy = super().reset_metrics, self.distribute_strategy
            self._reset = tf.function(lambda: strategy.run(reset), autograph=False)
        self._reset()

    def train_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Takes one step on a batch, in chunks where `compile` was given a size.

        Args:
            data: What `prepare_batch` returned; under a strategy, this replica's rows.

        Returns:
            Loss and in-batch accuracy so far, means over these rows.
        """
        weights = self.trainable_weights
        replicas = self.distribute_strategy.num_replicas_in_sync
        known = self._described(data)  # outside of the tape: no gradient flows

        def scaled_loss(queries: tf.Tensor, documents: tf.Tensor) -> tf.Tensor:
            loss = self._loss(queries, documents, data, known)
            self._loss_tracker.update_state(loss * replicas, sample_weight=tf.shape(queries)[0])
            return self.optimizer.scale_loss(loss)

        if self.chunk_size is None:
            with tf.GradientTape() as tape:
                embeddings = self(data, training=True)
                loss = scaled_loss(
                    embeddings["query_embeddings"], embeddings["document_embeddings"]
                )
            gradients = tape.gradient(loss, weights)
        else:
            gradients = self._gradients_by_chunks(data, scaled_loss, chunk_size=self.chunk_size)
        self.optimizer.apply(sum_gradients(gradients), weights)
        return self.get_metrics_result()

    def _gradients_by_chunks(
        self,
        data: Mapping[str, tf.Tensor],
        scaled_loss: Callable[..., tf.Tensor],
        *,
        chunk_size: int,
    ) -> list[tf.Tensor]:
        towers = {"query": self.query_tower, "document": self.document_tower}
        return cached_gradients(
            [
                (functools.partial(tower, training=True), tokens_of(side, data))
                for side, tower in towers.items()
            ],
            scaled_loss,
            chunk_size=chunk_size,
            weights=self.trainable_weights,
            random_states=random_states(towers.values()),
        )

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the task's loss of a batch (called by Keras' `test_on_batch`)."""
        return self.loss_of_embeddings(y_pred["query_embeddings"], y_pred["document_embeddings"], x)

    def loss_of_embeddings(
        self,
        query_embeddings: tf.Tensor,
        document_embeddings: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
    ) -> tf.Tensor:
        """Returns the task's loss of embeddings that are there, and counts in-batch accuracy.

        Args:
            query_embeddings: (B, D).
            document_embeddings: (C, D), C >= B.
            batch: What `prepare_batch` returned.

        Returns:
            Scalar float32; under a strategy this replica's share of the loss of the whole batch,
            whose queries choose among the documents of all replicas.

        Raises:
            ConfigError: the model is not compiled.
        """
        known = self._described(batch)
        return self._loss(query_embeddings, document_embeddings, batch, known)

    def _described(self, batch: Mapping[str, tf.Tensor]) -> tuple[Rows, Rows]:
        if self.task is None:
            raise ConfigError("the model has no task: call `compile` before `fit`.")
        return self.task.describe(batch, chunk_size=self.chunk_size)

    def _loss(
        self,
        query_embeddings: tf.Tensor,
        document_embeddings: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        known: tuple[Rows, Rows],
    ) -> tf.Tensor:
        task: Task = self.task  # type: ignore[assignment]  # `_described` has seen to it
        queries = {
            "embeddings": tf.cast(query_embeddings, tf.float32),
            "positive_keys": batch["positive_keys"],
            **known[0],
        }
        documents = {
            "embeddings": tf.cast(document_embeddings, tf.float32),
            "keys": batch["candidate_keys"],
            **known[1],
        }
        rows = None if self.chunk_size is None else max(self.chunk_size, _SCORE_ROWS)
        loss, accuracy = loss_over_replicas(task, queries, documents, rows=rows)
        self._accuracy.update_state(accuracy)
        return share_of_mean(loss)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far."""
        return self.get_metrics_result()

    def _check_rows(self, batches: PairBatches) -> None:
        """Refuses batches whose rows cannot be shared out evenly."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        last = batches.smallest_batch
        for name, rows in (("`batch_size`", batches.batch_size), ("the last batch", last)):
            if rows % replicas:
                raise ConfigError(
                    f"{name} must be a multiple of the {replicas} replicas, which share its rows"
                    f" out evenly. Received: {rows}"
                )


def tokens_of(side: str, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the `query` or `document` side of a prepared batch as a tower takes it."""
    return {name: batch[f"{side}_{name}"] for name in ("token_ids", "padding_mask")}
