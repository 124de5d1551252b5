"""A step of training two towers on pairs, on one device or on the replicas of a strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.tasks.gradient_cache import cached_gradients, embed_in_chunks, random_states
from tfde.tasks.replicas import (
    share_of_mean,
    sum_gradients,
)
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.score_blocks import loss_over_replicas
from tfde.tasks.task import Rows, Task, candidate_texts
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor, cut_counts
from tfde.towers.fit_loop import (
    compile_in_scope,
)

# With a chunk size, scores are computed for so many queries at once: 32 MB for 8,192 documents.
_SCORE_ROWS = 1024
CUT_COUNTS = "cut_counts"


class PairSteps(keras.Model):
    """A model of two towers, and what it does with a batch of pairs.

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

    def test_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far; arguments as of `train_step`."""
        data, _, _ = keras.utils.unpack_x_y_sample_weight(data)  # as `test_on_batch` has it
        queries, documents = (
            embed_in_chunks(
                functools.partial(tower, training=False),
                tokens_of(side, data),
                chunk_size=self.chunk_size,
            )
            for side, tower in (("query", self.query_tower), ("document", self.document_tower))
        )
        loss = self.loss_of_embeddings(queries, documents, data)
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
        self._accuracy.update_state(accuracy, sample_weight=tf.shape(query_embeddings)[0])
        return share_of_mean(loss)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far."""
        return self.get_metrics_result()


def tokens_of(side: str, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the `query` or `document` side of a prepared batch as a tower takes it."""
    return {name: batch[f"{side}_{name}"] for name in ("token_ids", "padding_mask")}
