"""Training of cross-encoders and matchers on pairs with labels, alone or with teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

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
from tfde.matching.pair_states import PairStates
from tfde.matching.state_losses import HiddenLoss, StateLoss, VirtLoss
from tfde.tasks.replicas import share_of_mean, sum_gradients
from tfde.towers.fit_loop import (
    Throughput,
    compile_in_scope,
    distribute_batches,
    endless,
    fit_epochs,
    step_function,
)
from tfde.towers.keras_saving import WholeFiles

# What layers of the first teacher teach: `NAME_weight` and `NAME_layers` of a `Teaching`.
_STATE_LOSSES: dict[str, type[StateLoss]] = {"virt": VirtLoss, "hidden": HiddenLoss}


@dataclass(frozen=True)
class Teaching(TeachingWeights):
    """What a student learns beside its labels; `TeachingWeights` says how it weighs.

    Args:
        teachers: Fine-tuned cross-encoders, which training leaves as they are; attention and
            hidden states are those of the first one, the logits are the mean of all.
    """

    teachers: tuple[CrossEncoder, ...]

    def __post_init__(self) -> None:
        require(len(self.teachers) > 0, "teachers", "not empty", self.teachers)
        for name in ("virt_weight", "hidden_weight", "logit_weight", "label_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.temperature > 0, "temperature", "above 0", self.temperature)
        if not self.virt_weight and not self.hidden_weight and not self.logit_weight:
            raise ConfigError(
                "a teacher needs `virt_weight`, `hidden_weight` or `logit_weight` above 0."
                " Received: 0, 0 and 0"
            )


def _of_student(name: str) -> Callable[..., Any]:
    def refuse(self: MatchTrainer, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            f"MatchTrainer has no `{name}`: write `trainer.student.{name}(...)`. A student has a"
            " `compile` of its own."
        )

    refuse.__doc__ = f"Refuses: `{name}` is the student's."
    return refuse


class MatchTrainer(WholeFiles):
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
            labels, too few layers, or other sizes; VIRT for a cross-encoder; attention or hidden
            states of texts that are not the teacher's.
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
        states = _state_losses(student, teaching) if teaching else {}
        self._state_losses: Callable[[], dict[str, StateLoss]] = lambda: states
        if teaching:
            _check_teachers(student, teaching)
        names = ["label_loss"] if teaching else []
        names += [f"{name}_loss" for name in states]
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
        return fit_epochs(
            self,
            lambda epoch, done: distribute_batches(
                endless(x.dataset(start_step=initial_step + done)),
                self.prepare_batch,
                self.distribute_strategy,
            ),
            epochs=1,
            steps=steps - initial_step,
            callbacks=[Throughput(x.batch_size), *(callbacks or ())],
            verbose=verbose,
        )

    evaluate, predict = _of_student("evaluate"), _of_student("predict")
    train_on_batch, test_on_batch = _of_student("train_on_batch"), _of_student("test_on_batch")

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

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the `.keras` file of the student; arguments as in Keras."""
        self.student.save(filepath, *args, **kwargs)

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

    def _ask_teachers(self, data: Mapping[str, Any]) -> tuple[list[tf.Tensor], PairStates | None]:
        """Returns the teachers' logits, where they are wanted, and the states of the first."""
        teaching = self._teaching()
        logits, states = [], None
        teachers = () if teaching is None else teaching.teachers
        prepared = zip(teachers, data["teachers"], data["teacher_tokens"], strict=True)
        for number, (teacher, inputs, tokens) in enumerate(prepared):
            if number == 0 and self._state_losses():
                found, states = teacher.call_with_states(inputs, tokens, training=False)
                logits.append(found)
            elif teaching is not None and teaching.logit_weight:
                logits.append(teacher(inputs, training=False))
        return logits, states

    def _pair_losses(
        self,
        data: Mapping[str, Any],
        taught: tuple[list[tf.Tensor], PairStates | None],
        *,
        training: bool,
    ) -> tf.Tensor:
        """Returns the loss of each pair, or group of pairs."""
        teaching, groups = self._teaching(), {"group_size": self.group_size}
        teacher_logits, teacher_states = taught
        states = None
        if teacher_states is None:
            logits = self.student(data["student"], training=training)
        else:
            logits, states = self.student.call_with_states(
                data["student"], data["student_tokens"], training=training
            )
        logits = tf.cast(logits, tf.float32) * self.score_scale
        losses = task_loss(self.objective, logits, data["label"], **groups)
        if teaching is None:
            return losses
        parts = [("label", losses)]
        if states is not None and teacher_states is not None:
            for name, loss in self._state_losses().items():
                apart = loss(states, teacher_states)
                if self.objective == "ranking":
                    apart = tf.reduce_mean(tf.reshape(apart, (-1, self.group_size)), axis=1)
                parts.append((name, apart))
        if teaching.logit_weight:
            distance = logit_loss(
                teaching.logit_loss,
                self.objective,
                logits,
                tf.add_n(teacher_logits) / len(teacher_logits),
                temperature=teaching.temperature,
                **groups,
            )
            parts.append(("logit", distance))
        for name, part in parts:
            self._means[f"{name}_loss"].update_state(part)
        return tf.add_n([getattr(teaching, f"{name}_weight") * part for name, part in parts])


def _state_losses(student: PairScorer, teaching: Teaching) -> dict[str, StateLoss]:
    found = {}
    for name, loss in _STATE_LOSSES.items():
        weight = f"{name}_weight"
        if not getattr(teaching, weight):
            continue
        where = student.encoder_and_apart()
        if where is None:
            raise ConfigError(
                f"`{weight}` is for Transformers, whose layers are compared. Received:"
                f" {getattr(teaching, weight)} for a student of another kind"
            )
        teacher = teaching.teachers[0]
        _check_texts(student, teacher, weight)
        encoder, apart = where
        with naming(f"{name}_layers"):
            layers = getattr(teaching, f"{name}_layers") or None
            found[name] = loss(encoder, teacher.encoder, apart=apart, layers=layers)
    return found


def _check_texts(student: PairScorer, teacher: CrossEncoder, weight: str) -> None:
    """Checks that both models read the same tokens of a text, which are compared one by one."""
    text, theirs = student.preprocessor.text_config, teacher.preprocessor.text_config
    prompts = [getattr(text, f"{side}_prompt", "") for side in ("query", "document")]
    if any(prompts) or "[SEP]" in text.document_template:
        raise ConfigError(
            f"`{weight}` needs texts as the teacher reads them: no prompts, and no [SEP] in the"
            f" template. Received: {prompts[0]!r}, {prompts[1]!r} and {text.document_template!r}"
        )
    template = theirs.document_template
    rule = f"{template!r}, the teacher's: `{weight}` compares token by token"
    require(text.document_template == template, "document_template", rule, text.document_template)
    own, first = student.preprocessor.tokenizer, teacher.preprocessor.tokenizer
    if first.fingerprint_bytes() != own.fingerprint_bytes():
        raise ConfigError(
            f"the teacher of `{weight}` must have the student's vocabulary: it is compared token by"
            f" token. Received: one of {first.vocabulary_size} tokens, not of"
            f" {own.vocabulary_size} or not the same"
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
