"""`compile`, `fit` and `evaluate` of models that score pairs, as Keras names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.config.matching import Objective
from tfde.errors import ConfigError, require
from tfde.matching.labelled_input import LabelRules
from tfde.matching.labelled_training import LabelledTraining
from tfde.matching.logit_metrics import logit_metrics, try_on_logits
from tfde.matching.match_loss import task_loss
from tfde.tasks.score_task import losses_of
from tfde.towers.fit_loop import compile_in_scope, uses_xla

_SIGMOIDS = (None, "binary_crossentropy", "bce", "BinaryCrossentropy")


class ScorerTraining(LabelledTraining):
    """A model that scores pairs and learns from labels.

    `MatchTrainer` trains the same models on groups of pairs and with teachers.
    """

    num_labels: int
    labels: Any
    prepare: Callable[..., dict[str, tf.Tensor]]
    _pair_losses: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        loss_weights: None = None,
        metrics: Any = None,
        weighted_metrics: None = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = False,
        auto_scale_loss: bool = True,
    ) -> None:
        """Sets optimizer, loss and metrics.

        Args:
            optimizer: A Keras optimizer.
            loss: A Keras loss, its name, or a function of labels and logits, which returns a number
                for each pair: labels (B,) int32 and logits (B, N) of several labels, else (B, 1)
                float32 each. `None`: softmax cross-entropy of several labels, else the sigmoid's.
            loss_weights: None: there is one loss.
            metrics: Keras metrics of the same two; "accuracy" is that of the largest logit, or of
                the one logit's sign.
            weighted_metrics: None: pairs have no weights.
            run_eagerly: For debugging.
            steps_per_execution: 1.
            jit_compile: XLA, which compiles anew for every length; "auto" is false.
            auto_scale_loss: As in Keras, for `mixed_float16`.

        Raises:
            ConfigError: a loss or metric that is none, wants probabilities, or labels of another
                shape.
        """
        require(loss_weights is None, "loss_weights", "None: there is one loss", loss_weights)
        own_metrics = logit_metrics(metrics, self.distribute_strategy, self.num_labels)
        objective: Objective = "classification" if self.num_labels > 1 else "binary"
        losses, reduction = None, None
        if loss is not None:
            losses, reduction = losses_of(loss)
            try_on_logits("loss", losses, loss, self.num_labels)
        compile_in_scope(
            self,
            super().compile,
            optimizer=optimizer,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=uses_xla(jit_compile),
            auto_scale_loss=auto_scale_loss,
        )
        self._pair_losses = losses or (
            lambda labels, logits: task_loss(objective, logits, tf.reshape(labels, [-1]))
        )
        arguments = {
            "loss": loss,
            "metrics": metrics,
            "jit_compile": uses_xla(jit_compile),
            "run_eagerly": run_eagerly,
        }
        self._compile_arguments = lambda: arguments
        self._sums = reduction == "sum"
        self._own_metrics = lambda: own_metrics
        self._single = None

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The mean loss, and what `compile` was given."""
        return [self._loss_tracker, *self._own_metrics()] if self.compiled else []

    def check_compiled(self) -> None:
        """Refuses a model that is not compiled."""
        if not self.compiled:
            raise ConfigError("the model has no loss: call `compile` before `fit` and `evaluate`.")

    def label_rules(self) -> LabelRules:
        """Returns what labels the model and its loss take."""
        single = self.num_labels == 1
        labels = self.labels if not single or len(self.labels) == 2 else ()
        loss = self._compile_arguments()["loss"]
        cross_entropy = isinstance(loss, keras.losses.BinaryCrossentropy) or loss in _SIGMOIDS
        return LabelRules(tuple(labels), self.num_labels, single and cross_entropy)

    def prepare_batch(self, batch: Mapping[str, tf.Tensor], **options: Any) -> dict[str, Any]:
        """Returns token ids and masks of a batch, as `call` takes them, and `label` (B,)."""
        inputs = self.prepare(batch["first"], batch["title"], batch["text"])
        return {"inputs": inputs, "label": batch["label"]}

    def _mean_loss(self, data: Mapping[str, Any], taught: None, *, training: bool) -> tf.Tensor:
        logits = tf.cast(self(data["inputs"], training=training), tf.float32)
        labels = data["label"][:, tf.newaxis]
        if self.num_labels > 1:
            labels = tf.cast(data["label"], tf.int32)
        self.count_metrics(labels, logits)
        return tf.reduce_mean(self._pair_losses(labels, logits))
