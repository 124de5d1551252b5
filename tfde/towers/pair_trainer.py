"""Training of two towers on pairs, by Keras' `fit`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.data.pairs import PairDataset
from tfde.errors import ConfigError
from tfde.tasks.retrieval_task import RetrievalTask, in_batch_accuracy
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.throughput import Throughput

_LOG = logging.getLogger(__name__)


class PairTrainer(keras.Model):
    """A model of two towers that learns from pairs; `DualEncoder` says what the towers are.

    Args:
        preprocessor: Texts to token ids, for both towers.
        name: The model's name.
    """

    def __init__(self, preprocessor: TextPreprocessor, *, name: str) -> None:
        super().__init__(name=name)
        self.preprocessor = preprocessor
        self.task: RetrievalTask | None = None
        self._accuracy = keras.metrics.Mean(name="in_batch_accuracy")

    def compile(
        self,
        optimizer: Any = "adam",
        *,
        task: RetrievalTask | None = None,
        jit_compile: bool = False,
        run_eagerly: bool = False,
    ) -> None:
        """Sets optimizer and task.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adafactor(1e-3, decay_steps=20_000)`.
            task: The loss; `None` takes `RetrievalTask()`.
            jit_compile: XLA. Off by default: lengths differ from batch to batch, and every new
                shape would be compiled anew.
            run_eagerly: For debugging.
        """
        self.task = task or RetrievalTask()
        super().compile(optimizer=optimizer, jit_compile=jit_compile, run_eagerly=run_eagerly)

    def fit(
        self,
        x: PairDataset | tf.data.Dataset,
        *,
        epochs: int = 1,
        steps: int | None = None,
        initial_step: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on pairs; tokenization is mapped over them here.

        Args:
            x: `tfde.pairs(...)`, or a `tf.data.Dataset` of batches with the same keys.
            epochs: Passes over the pairs.
            steps: Train up to this step instead; it counts from the beginning of the data.
            initial_step: First batch to take, to go on where an earlier run stopped.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Raises:
            ConfigError: there is nothing left to train.
        """
        if isinstance(x, PairDataset):
            total = steps if steps is not None else epochs * x.steps_per_epoch
            if total <= initial_step:
                raise ConfigError(
                    f"`initial_step` must be below the {total} steps to train."
                    f" Received: initial_step={initial_step}"
                )
            batches = x.dataset(start_step=initial_step, steps=total - initial_step)
            callbacks = [Throughput(x.batch_size), *(callbacks or ())]
            if steps is None and initial_step == 0:
                steps = x.steps_per_epoch
            else:
                epochs, steps = 1, total - initial_step
        else:
            batches = x
        halves = {weight.dtype for weight in self.trainable_weights} & {"bfloat16", "float16"}
        for dtype in sorted(halves):
            _LOG.warning(
                'weights in %s round small updates away; dtype="mixed_%s" holds them in float32',
                dtype,
                dtype,
            )
        batches = batches.map(self.prepare_batch, num_parallel_calls=tf.data.AUTOTUNE)
        return super().fit(
            batches.prefetch(tf.data.AUTOTUNE),
            shuffle=False,  # the pairs come in their order; Keras could not shuffle batches anyway
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=callbacks,
            verbose=verbose,
        )

    def prepare_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tokenizes a batch of `tfde.pairs` (graph ops); given negatives follow the positives.

        Args:
            batch: Strings and keys, as `PairDataset.dataset` yields them.

        Returns:
            Token ids and masks as `call` takes them, `positive_keys` (B, P) and `candidate_keys`
            (C,) int64, and `candidate_sampling_probability` (C,) float32 if the task wants it;
            it is how often a document is expected in a batch, B times its share of the pairs
            and at most 1; a given negative is there by choice, its probability is 1.
        """
        titles, texts, keys = (
            tf.concat([batch[f"document_{name}"], tf.reshape(batch[f"negative_{name}"], [-1])], 0)
            for name in ("title", "text", "key")
        )
        query_ids, query_mask = self.preprocessor.queries(batch["query"])
        document_ids, document_mask = self.preprocessor.documents(titles, texts)
        prepared = {
            "query_token_ids": query_ids,
            "query_padding_mask": query_mask,
            "document_token_ids": document_ids,
            "document_padding_mask": document_mask,
            "positive_keys": batch["positive_keys"],
            "candidate_keys": keys,
        }
        if self.task is not None and self.task.sampling_correction:
            given = tf.ones([tf.size(batch["negative_key"])], tf.float32)
            share = batch["document_probability"]
            expected = tf.minimum(share * tf.cast(tf.size(share), tf.float32), 1.0)
            prepared["candidate_sampling_probability"] = tf.concat([expected, given], 0)
        return prepared

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the task's loss of a batch (called by Keras' train step)."""
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
            batch: What `prepare_batch` returned: the keys, and sampling probabilities.

        Returns:
            Scalar float32.

        Raises:
            ConfigError: the model is not compiled.
        """
        if self.task is None:
            raise ConfigError("the model has no task: call `compile` before `fit`.")
        queries = tf.cast(query_embeddings, tf.float32)
        documents = tf.cast(document_embeddings, tf.float32)
        keys = {name: batch[name] for name in ("candidate_keys", "positive_keys")}
        self._accuracy.update_state(in_batch_accuracy(queries, documents, **keys))
        return self.task(
            queries,
            documents,
            candidate_sampling_probability=batch.get("candidate_sampling_probability"),
            **keys,
        )

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far."""
        return self.get_metrics_result()
