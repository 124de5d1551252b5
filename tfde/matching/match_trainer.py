"""Training of cross-encoders and matchers on pairs with labels, alone or with teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.transformer import EncoderStates
from tfde.config.matching import Objective, TeachingWeights
from tfde.data.pairs.labelled import LabelledBatches
from tfde.errors import ConfigError, naming, require
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.match_loss import (
    check_objective,
    logit_loss,
    task_loss,
)
from tfde.matching.pair_model import PairScorer
from tfde.matching.virt import VirtLoss
from tfde.tasks.replicas import share_of_mean, sum_gradients
from tfde.towers.fit_loop import (
    Throughput,
    compile_in_scope,
    distribute_batches,
    endless,
    fit_epochs,
    step_function,
)


@dataclass(frozen=True)
class Teaching(TeachingWeights):
    """What a student learns beside its labels; `TeachingWeights` says how it weighs.

    Args:
        teachers: Fine-tuned cross-encoders, which training leaves as they are; the first one's
            attention is what VIRT teaches, the logits are the mean of all.
    """

    teachers: tuple[CrossEncoder, ...]

    def __post_init__(self) -> None:
        require(len(self.teachers) > 0, "teachers", "not empty", self.teachers)
        for name in ("virt_weight", "logit_weight", "label_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.temperature > 0, "temperature", "above 0", self.temperature)
        if not self.virt_weight and not self.logit_weight:
            raise ConfigError(
                "a teacher needs `virt_weight` or `logit_weight` above 0. Received: 0 and 0"
            )


class MatchTrainer(keras.Model):
    """Trains a student; it is no part of what is saved or exported.

    Args:
        student: A `CrossEncoder`, a `Matcher`, or a `DualEncoderScorer`; it is trained in place.
        objective: What the labels are, see `task_loss`.
        group_size: With `ranking`, how many pairs share a first text, the right one first.
        score_scale: With `ranking`, what scores are multiplied by before their softmax: one over
            the temperature of a cosine.
        teaching: What it learns from teachers; `None` for nothing.

    Raises:
        ConfigError: objective and student do not fit; a teacher has another vocabulary, other
            labels, too few layers, or other heads; VIRT for a cross-encoder, or for texts that
            are not the teacher's.
    """

    def __init__(
        self,
        student: PairScorer,
        *,
        objective: Objective = "classification",
        group_size: int = 1,
        score_scale: float = 1.0,
        teaching: Teaching | None = None,
    ) -> None:
        super().__init__(name="match_trainer", dtype=student.dtype_policy)
        check_objective(
            objective,
            num_labels=student.num_labels,
            group_size=group_size,
            kind=teaching.logit_loss if teaching and teaching.logit_weight else None,
        )
        require(score_scale > 0, "score_scale", "above 0", score_scale)
        fits = score_scale == 1 or objective == "ranking"
        require(fits, "score_scale", f"1 with objective {objective}", score_scale)
        self.student = student
        self.objective = objective
        self.group_size = group_size
        self.score_scale = score_scale
        # Hidden from Keras, which would train and save what it sees.
        self._teaching: Callable[[], Teaching | None] = lambda: teaching
        virt = _virt_loss(student, teaching) if teaching else None
        self._virt: Callable[[], VirtLoss | None] = lambda: virt
        if teaching:
            _check_teachers(student, teaching)
        names = ["label_loss"] if teaching else []
        names += ["virt_loss"] if virt else []
        names += ["logit_loss"] if teaching and teaching.logit_weight else []
        self._means = {name: keras.metrics.Mean(name=name) for name in names}
        self.built = True

    def compile(
        self, optimizer: Any = "adam", *, jit_compile: bool = False, run_eagerly: bool = False
    ) -> None:
        """Sets the optimizer.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adamw(5e-5, decay_steps=1000)`.
            jit_compile: XLA, which compiles anew for every length.
            run_eagerly: For debugging.
        """
        options = {"jit_compile": jit_compile, "run_eagerly": run_eagerly}
        compile_in_scope(self, super().compile, optimizer=optimizer, **options)

    def fit(
        self,
        x: LabelledBatches,
        *,
        steps: int,
        initial_step: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains up to a step; tokenization is mapped over the pairs here.

        Args:
            x: The pairs in batches.
            steps: Up to this step, counted from the beginning of the data.
            initial_step: First batch to take, to go on where an earlier run stopped.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Raises:
            ConfigError: groups of the pairs have another size; nothing is left to train.
        """
        require(initial_step < steps, "initial_step", f"below the {steps} steps", initial_step)
        rule = f"{self.group_size}, as the trainer's"
        require(x.group_size == self.group_size, "group_size", rule, x.group_size)
        replicas = self.distribute_strategy.num_replicas_in_sync
        rule = f"a multiple of {replicas} replicas times {self.group_size} pairs of a group"
        whole = x.batch_size % (replicas * self.group_size) == 0
        require(whole, "batch_size", rule, x.batch_size)
        batches = endless(x.dataset(start_step=initial_step))
        return fit_epochs(
            self,
            distribute_batches(batches, self.prepare_batch, self.distribute_strategy),
            epochs=1,
            steps=steps - initial_step,
            callbacks=[Throughput(x.batch_size), *(callbacks or ())],
            verbose=verbose,
        )

    def make_train_function(self, force: bool = False) -> None:
        """Makes `train_function`, an iterator of batches -> logs of one step."""
        if force or getattr(self, "train_function", None) is None:
            self.train_function = step_function(self, self.train_step)

    def prepare_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Tokenizes a batch for the student and for each teacher (graph ops).

        Args:
            batch: `first`, `title`, `text` (B,) string and `label` (B,) float32.

        Returns:
            `student` and `student_tokens`, `teachers` and `teacher_tokens` (tuples), `label`.
        """
        texts = (batch["first"], batch["title"], batch["text"])
        teaching = self._teaching()
        student, student_tokens = self.student.prepare_tokens(*texts)
        prepared = {"student": student, "student_tokens": student_tokens, "label": batch["label"]}
        teachers = teaching.teachers if teaching else ()
        found = [teacher.prepare_tokens(*texts) for teacher in teachers]
        prepared["teachers"] = tuple(inputs for inputs, _ in found)
        prepared["teacher_tokens"] = tuple(places for _, places in found)
        return prepared

    def save_to_preset(self, directory: str | Path) -> None:
        """Writes the model directory of the student."""
        self.student.save_to_preset(directory)

    def train_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Takes one step on a batch.

        Args:
            data: What `prepare_batch` returned; under a strategy, this replica's rows.

        Returns:
            The loss so far and its parts, means over these rows.
        """
        taught = self._ask_teachers(data)
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._pair_losses(data, taught, training=True))
            replicas = self.distribute_strategy.num_replicas_in_sync
            share = share_of_mean(loss)
            self._loss_tracker.update_state(share * replicas)
            scaled = self.optimizer.scale_loss(share)
        self.optimizer.apply(sum_gradients(tape.gradient(scaled, weights)), weights)
        return self.get_metrics_result()

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns the loss so far and its parts."""
        return self.get_metrics_result()

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Returns the student's logits, (B, N) float32."""
        return self.student(inputs, training=training)

    def _ask_teachers(
        self, data: Mapping[str, Any]
    ) -> tuple[tf.Tensor, EncoderStates | None] | None:
        """Returns the mean of the teachers' logits, and the states of the first."""
        teaching = self._teaching()
        if teaching is None:
            return None
        logits, states = [], None
        for number, (teacher, inputs) in enumerate(
            zip(teaching.teachers, data["teachers"], strict=True)
        ):
            if number == 0 and self._virt() is not None:
                found, states = teacher.call_with_states(inputs, training=False)
                logits.append(found)
            elif teaching.logit_weight:
                logits.append(teacher(inputs, training=False))
        return tf.add_n(logits) / len(logits), states

    def _pair_losses(
        self,
        data: Mapping[str, Any],
        taught: tuple[tf.Tensor, EncoderStates | None] | None,
        *,
        training: bool,
    ) -> tf.Tensor:
        """Returns the loss of each pair, or group of pairs."""
        virt, teaching, groups = self._virt(), self._teaching(), {"group_size": self.group_size}
        if virt is None:
            logits = self.student(data["student"], training=training)
        else:
            logits, states = self.student.call_with_states(data["student"], training=training)
        logits = tf.cast(logits, tf.float32) * self.score_scale
        losses = task_loss(self.objective, logits, data["label"], **groups)
        if teaching is None or taught is None:
            return losses
        teacher_logits, teacher_states = taught
        self._means["label_loss"].update_state(losses)
        losses *= teaching.label_weight
        if virt is not None and teacher_states is not None:
            apart = virt(states, data["student_tokens"], teacher_states, data["teacher_tokens"][0])
            self._means["virt_loss"].update_state(apart)
            if self.objective == "ranking":
                apart = tf.reduce_mean(tf.reshape(apart, (-1, self.group_size)), axis=1)
            losses += teaching.virt_weight * apart
        if teaching.logit_weight:
            distance = logit_loss(
                teaching.logit_loss,
                self.objective,
                logits,
                teacher_logits,
                temperature=teaching.temperature,
                **groups,
            )
            self._means["logit_loss"].update_state(distance)
            losses += teaching.logit_weight * distance
        return losses


def _virt_loss(student: PairScorer, teaching: Teaching) -> VirtLoss | None:
    if not teaching.virt_weight:
        return None
    apart = student.encoder_apart()
    if apart is None:
        raise ConfigError(
            "`virt_weight` is for Transformers that encode texts apart; a cross-encoder has the"
            f" attention that VIRT teaches. Received: {teaching.virt_weight} for"
            f" {type(student).__name__}"
        )
    text = student.preprocessor.text_config
    if text.query_prompt or text.document_prompt or "[SEP]" in text.document_template:
        raise ConfigError(
            "`virt_weight` needs texts as the teacher reads them: no prompts, and no [SEP] in the"
            f" template. Received: {text.query_prompt!r}, {text.document_prompt!r} and"
            f" {text.document_template!r}"
        )
    template = teaching.teachers[0].preprocessor.text_config.document_template
    rule = f"{template!r}, the teacher's: `virt_weight` compares token by token"
    require(text.document_template == template, "document_template", rule, text.document_template)
    encoder, layers = apart
    with naming("virt_layers"):
        return VirtLoss(
            encoder,
            teaching.teachers[0].encoder,
            layers=teaching.virt_layers or None,
            student_layers=layers,
        )


def _check_teachers(student: PairScorer, teaching: Teaching) -> None:
    for teacher in teaching.teachers:
        if teacher is student:
            raise ConfigError("a teacher must be another model than the student.")
        if teaching.logit_weight and teacher.num_labels != student.num_labels:
            raise ConfigError(
                f"a teacher must have the student's {student.num_labels} labels."
                f" Received: {teacher.num_labels}"
            )
        if teaching.logit_weight and teacher.labels and student.labels:
            rule = f"{', '.join(student.labels)}, in this order (`labels` of a run sets it)"
            same = teacher.labels == student.labels
            require(same, "labels of a teacher", rule, ", ".join(teacher.labels))
    own = student.preprocessor.tokenizer.fingerprint_bytes()
    first = teaching.teachers[0].preprocessor.tokenizer
    if teaching.virt_weight and first.fingerprint_bytes() != own:
        raise ConfigError(
            "the teacher of `virt_weight` must have the student's vocabulary: its attention is"
            f" compared token by token. Received: one of {first.vocabulary_size} tokens, not of"
            f" {student.preprocessor.tokenizer.vocabulary_size} or not the same"
        )
