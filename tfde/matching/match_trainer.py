"""Training of cross-encoders and matchers on pairs with labels, alone or with teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.config.matching import Objective
from tfde.data.pairs.labelled import LabelledPairs, ranked_pairs
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, require
from tfde.matching.labelled_input import LabelRules
from tfde.matching.labelled_training import LabelledTraining
from tfde.matching.logit_metrics import logit_metrics
from tfde.matching.match_loss import check_objective, logit_loss, task_loss
from tfde.matching.pair_model import PairScorer
from tfde.matching.pair_states import PairStates
from tfde.matching.state_losses import StateLoss
from tfde.matching.teaching import Teaching, check_teachers, state_losses
from tfde.towers.fit_loop import compile_in_scope, uses_xla


class MatchTrainer(LabelledTraining):
    """Trains a student; it is no part of what is saved or exported.

    Args:
        student: A `CrossEncoder`, a `Matcher`, or a `DualEncoderScorer`; it is trained in place.
        objective: What the labels are, see `task_loss`.
        group_size: With `ranking`, how many pairs share a first text, the right one first.
        score_scale: With `ranking`, what scores are multiplied by before their softmax, and before
            they are compared with a teacher's: one over the temperature of a cosine.
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
        student.untrained = False
        self.objective = objective
        self.group_size = group_size
        self.score_scale = score_scale
        # Hidden from Keras, which would train and save what it sees.
        self._teaching: Callable[[], Teaching | None] = lambda: teaching
        states = state_losses(student, teaching) if teaching else {}
        self._state_losses: Callable[[], dict[str, StateLoss]] = lambda: states
        if teaching:
            check_teachers(student, teaching, ranks=objective == "ranking")
        names = ["label_loss"] if teaching else []
        names += [f"{name}_loss" for name in states]
        names += ["logit_loss"] if teaching and teaching.logit_weight else []
        self._means = {name: keras.metrics.Mean(name=name) for name in names}
        self.built = True

    def compile(
        self,
        optimizer: Any = "adam",
        *,
        metrics: Any = None,
        jit_compile: bool = False,
        run_eagerly: bool = False,
    ) -> None:
        """Sets optimizer and metrics.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adamw(5e-5, decay_steps=1000)`.
            metrics: Keras metrics of labels and logits, as a student's own `compile` takes them.
                With `ranking`, of the place of the right pair in its group, 0, (B / G,) int32, and
                the scores of the group, (B / G, G): "accuracy" is how often that is the best.
            jit_compile: XLA, which compiles anew for every length.
            run_eagerly: For debugging.

        Raises:
            ConfigError: a metric that is none, or wants labels of another shape; accuracy where the
                labels are no classes.
        """
        named = metrics if isinstance(metrics, list | tuple) else [metrics]
        classes = self.objective != "regression" or not {"accuracy", "acc"} & set(map(str, named))
        require(classes, "metrics", "of numbers with regression, such as mae", metrics)
        outcomes = self.group_size if self.objective == "ranking" else self.student.num_labels
        own_metrics = logit_metrics(metrics, self.distribute_strategy, outcomes)
        self._own_metrics = lambda: own_metrics
        options = {"jit_compile": uses_xla(jit_compile), "run_eagerly": run_eagerly}
        compile_in_scope(self, super().compile, optimizer=optimizer, **options)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The loss, its parts, and what `compile` was given."""
        return [*super().metrics, *self._own_metrics()]

    def check_compiled(self) -> None:
        """Refuses a trainer that is not compiled."""
        if not self.compiled:
            raise ConfigError("the trainer has no optimizer: call `compile` before `fit`.")

    def check_trains(self) -> None:
        """Refuses a student that cannot train."""
        self.student.check_trains()

    def label_rules(self) -> LabelRules:
        """Returns what labels the objective takes."""
        named = self.objective in ("classification", "binary")
        labels = tuple(self.student.labels) if named else ()
        return LabelRules(labels, self.student.num_labels, self.objective == "binary")

    def pairs_of(self, x: Any, y: Any) -> LabelledPairs:
        """Returns pairs in memory: groups of them with objective `ranking`."""
        if isinstance(x, LabelledPairs):
            rule = f"{self.group_size}, as the trainer's"
            require(x.group_size == self.group_size, "group_size", rule, x.group_size)
            return x
        if self.objective == "ranking":
            require(y is None, "y", "None with ranking: the right one comes first", y)
            table = read_pairs(x, argument="x")  # knows all answers of a question
            return ranked_pairs(table, negatives=self.group_size - 1, path="x")
        return super().pairs_of(x, y)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: `predict` is the student's."""
        raise ConfigError(
            "MatchTrainer has no `predict`: write `trainer.student.predict(...)`. A student has a"
            " `compile` of its own."
        )

    def get_config(self) -> dict[str, Any]:
        """Refuses: what is copied or saved is the student."""
        raise ConfigError(
            "MatchTrainer is not copied or saved itself: copy or save `trainer.student`, and make a"
            " trainer for it."
        )

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

    def _count(self, labels: tf.Tensor, logits: tf.Tensor) -> None:
        if self.objective == "ranking":
            scores = tf.reshape(logits, (-1, self.group_size))
            self.count_metrics(tf.zeros(tf.shape(scores)[:1], tf.int32), scores)
        elif self.objective == "classification":
            self.count_metrics(tf.cast(labels, tf.int32), logits)
        else:
            self.count_metrics(labels[:, tf.newaxis], logits)

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

    def _mean_loss(
        self,
        data: Mapping[str, Any],
        taught: tuple[list[tf.Tensor], PairStates | None],
        *,
        training: bool,
    ) -> tf.Tensor:
        """Returns the mean loss of the pairs, or groups of pairs."""
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
        self._count(data["label"], logits)
        if teaching is None:
            return tf.reduce_mean(losses)
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
        total = tf.add_n([getattr(teaching, f"{name}_weight") * part for name, part in parts])
        return tf.reduce_mean(total)
