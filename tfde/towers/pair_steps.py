"""A step of training two towers on pairs, on one device or on the replicas of a strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.tasks.adapters import as_task
from tfde.tasks.batch_metrics import InBatchAccuracy, as_metrics, check_rankings
from tfde.tasks.gradient_cache import (
    cached_gradients,
    check_state,
    embed_in_chunks,
    random_states,
)
from tfde.tasks.replicas import share_of_mean, sum_gradients
from tfde.tasks.score_blocks import loss_over_replicas
from tfde.tasks.task import Rows, Task, candidate_texts
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor, cut_counts
from tfde.towers.fit_loop import compile_in_scope, uses_xla
from tfde.towers.measured import Measured

# With a chunk size, scores are computed for so many queries at once: 32 MB for 8,192 documents.
_SCORE_ROWS = 1024
CUT_COUNTS = "cut_counts"


class PairSteps(Measured):
    """A model of two towers, and what it does with a batch of pairs.

    Args:
        preprocessor: Texts to token ids, for both towers.
        name: The model's name.
        dtype: Keras dtype policy of the towers' backbones: `mixed_float16` needs a loss scale.
        accuracy: What counts the rows that the model gets right; `None`: `InBatchAccuracy`.
    """

    query_tower: keras.Model
    document_tower: keras.Model

    def __init__(
        self,
        preprocessor: TextPreprocessor,
        *,
        name: str,
        dtype: keras.DTypePolicy,
        accuracy: keras.metrics.Metric | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.preprocessor = preprocessor
        self.task: Task | None = None
        self.chunk_size: int | None = None
        self._accuracy = accuracy or InBatchAccuracy()
        # Hidden from Keras, which would keep those of an earlier `compile`.
        self._own_metrics: Callable[[], list[keras.metrics.Metric]] = list
        self._reset: Callable[[], None] | None = None
        self._single: Any = None  # what makes single batches into iterators

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = False,
        auto_scale_loss: bool = True,
        *,
        task: Any = None,
        chunk_size: int | None = None,
    ) -> None:
        """Sets optimizer, loss and metrics.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adafactor(1e-3, decay_steps=20_000)`.
            loss: As `task`.
            loss_weights: Of several losses, a number each, in their order or by name.
            metrics: Keras' ranking metrics (keras-rs' too), in a list: of each batch they see
                relevance and scores, as `tfde.tasks.batch_metrics.update_metrics` says.
            weighted_metrics: None: pairs have no weights.
            run_eagerly: For debugging.
            steps_per_execution: 1.
            jit_compile: XLA. Off by default, and with "auto": lengths differ from batch to batch,
                and every new shape would be compiled anew.
            auto_scale_loss: As in Keras, for `mixed_float16`.
            task: The loss: a `tfde.Task`, `tfrs.tasks.Retrieval`, a Keras loss or its name, a
                function of `(relevance, scores)` or of `(query_embeddings, document_embeddings,
                batch)`, or several in a list; `None` takes `RetrievalTask()`.
            chunk_size: How many texts a tower works on at once, so that memory does not grow with
                the batch (the gradient cache, see `tfde.tasks.gradient_cache`); every text is
                embedded twice, and no layer may add to the loss. `None`: the whole batch at once.

        Raises:
            ConfigError: both `loss` and `task`; a loss or metric that cannot be honoured;
                `chunk_size` is below 1, of towers whose training changes more than what has a
                gradient, or asked for together with XLA, which needs shapes that do not depend on
                the texts; XLA is asked for with several replicas; a subclass has a `compute_loss`
                or `compute_metrics` of its own.
        """
        require(chunk_size is None or chunk_size >= 1, "chunk_size", "at least 1", chunk_size)
        for name, word in (("compute_loss", "loss"), ("compute_metrics", "metrics")):
            given = getattr(type(self), name) is not getattr(PairSteps, name)
            if given and type(self).train_step is PairSteps.train_step:
                raise ConfigError(
                    f"`{type(self).__name__}.{name}` would not be called: give `{word}` to"
                    " `compile`, or define `train_step`."
                )
        jit_compile = uses_xla(jit_compile)
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
        if chunk_size is not None:
            for tower in self.trained_towers.values():
                check_state(tower)
        rule = "None where there is a `task`, which is the loss"
        require(loss is None or task is None, "loss", rule, loss)
        chosen = as_task(loss if task is None else task, loss_weights)
        own_metrics = as_metrics(metrics, self.distribute_strategy)
        check_rankings(own_metrics, self.distribute_strategy)
        compile_in_scope(
            self,
            super().compile,
            optimizer=optimizer,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        self.task, self.chunk_size, self._single = chosen, chunk_size, None
        arguments = {
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "task": task,
            "chunk_size": chunk_size,
            "jit_compile": jit_compile,
            "run_eagerly": run_eagerly,
        }
        self._compile_arguments = lambda: arguments
        self._own_metrics = lambda: own_metrics
        self._reset = None
        with self.distribute_strategy.scope():
            self._accuracy.reset_state()

    @property
    def trained_towers(self) -> dict[str, keras.Model]:
        """Both towers as they train, by side."""
        return {"query": self.query_tower, "document": self.document_tower}

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The mean loss, the accuracy, and what `compile` was given."""
        return [self._loss_tracker, self._accuracy, *self._own_metrics()] if self.compiled else []

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what `compile` was given, as JSON values; none, where Keras could not read it."""
        return super().get_compile_config() if self.task is not None else {}

    def test_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far; arguments as of `train_step`."""
        data, _, _ = keras.utils.unpack_x_y_sample_weight(data)  # as `test_on_batch` has it
        if self.chunk_size is None:
            embeddings = self(data, training=False)
        else:
            embeddings = {
                f"{side}_embeddings": embed_in_chunks(
                    functools.partial(tower, training=False),
                    tokens_of(side, data),
                    chunk_size=self.chunk_size,
                )
                for side, tower in self.trained_towers.items()
            }
        queries, documents = (embeddings[f"{side}_embeddings"] for side in self.trained_towers)
        loss = self.loss_of_embeddings(queries, documents, data) + self._layer_losses()
        replicas = self.distribute_strategy.num_replicas_in_sync
        rows = tf.shape(queries)[0]
        self._loss_tracker.update_state(loss * replicas, sample_weight=rows)
        return self.get_metrics_result()

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
        preprocessor = preprocessor or self.preprocessor
        keys = candidate_texts(batch, "key")
        texts = [candidate_texts(batch, f) for f in preprocessor.text_config.document_fields]
        query_ids, query_mask, query_lengths = preprocessor.measured_queries(batch["query"])
        document_ids, document_mask, lengths = preprocessor.measured_documents(*texts)
        prepared = {
            "query_token_ids": query_ids,
            "query_padding_mask": query_mask,
            "document_token_ids": document_ids,
            "document_padding_mask": document_mask,
            "positive_keys": batch["positive_keys"],
            "candidate_keys": keys,
            CUT_COUNTS: tf.stack([cut_counts(query_lengths), cut_counts(lengths, keys != 0)]),
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
            self._reset = graph_function(lambda: strategy.run(reset))
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
            loss = self._loss(queries, documents, data, known) + self._layer_losses()
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
        towers = self.trained_towers
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
        """Returns the task's loss of what `call` made of a prepared batch, as Keras names it."""
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
        return self.compiled_task().describe(batch, chunk_size=self.chunk_size)

    def compiled_task(self) -> Task:
        """Returns the task that `compile` was given.

        Raises:
            ConfigError: the model is not compiled.
        """
        if self.task is None:
            raise ConfigError("the model has no task: call `compile` before `fit` and `evaluate`.")
        return self.task

    def _loss(
        self,
        query_embeddings: tf.Tensor,
        document_embeddings: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        known: tuple[Rows, Rows],
    ) -> tf.Tensor:
        task = self.compiled_task()
        queries = {
            "embeddings": _embeddings(query_embeddings, self.trained_towers["query"]),
            "positive_keys": batch["positive_keys"],
            **known[0],
        }
        documents = {
            "embeddings": _embeddings(document_embeddings, self.trained_towers["document"]),
            "keys": batch["candidate_keys"],
            **known[1],
        }
        rows = None if self.chunk_size is None else max(self.chunk_size, _SCORE_ROWS)
        metrics = self.metrics[1:]
        return share_of_mean(
            loss_over_replicas(task, queries, documents, metrics=metrics, rows=rows)
        )

    def _layer_losses(self) -> tf.Tensor:
        losses = [] if self.chunk_size is None else self.losses
        if losses:
            # What a call adds would be that of a chunk.
            raise ConfigError(
                "`chunk_size` must be None where layers add to the loss (regularizers, `add_loss`)."
                f" Received: a model with {len(losses)} such losses"
            )
        return super()._layer_losses()

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far."""
        return self.get_metrics_result()


def _embeddings(embeddings: tf.Tensor, tower: keras.Model) -> tf.Tensor:
    # Losses of others ask for shapes, which chunks forget.
    return tf.ensure_shape(tf.cast(embeddings, tf.float32), tower.output_shape)


def tokens_of(side: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a side of a prepared batch (`query`, `first`, ...) as its tower takes it."""
    return {name: batch[f"{side}_{name}"] for name in ("token_ids", "padding_mask")}
