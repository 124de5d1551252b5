"""What happens between the steps of a stage: history, validation, checkpoints."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from tfde.errors import TrainingError
from tfde.storage.atomic import atomic_file
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.checkpoint import Progress, save_checkpoint
from tfde.training.run_record import CHECKPOINT_FILE, HISTORY_FILE
from tfde.training.stage_times import BATCHES, SAVING, STEPS, VALIDATION, StageTimes

logger = logging.getLogger("tfde")

_TELL_S, _TELL_FIRST_S = 60.0, 10.0
BEST_MODEL = "best_model"
AFTER_LAST_STEP = "after the last step, which is saved: the same command goes on"


class Validation(Protocol):
    """What measures a model between the steps of a stage; a class of it has the defaults below."""

    every_steps: int
    leading_measure: str  # decides which model is the best
    extent: str  # on how much, for people to read
    measures_start: bool = False  # before the first step

    def __call__(self, model: Any) -> dict[str, float]:
        """Returns measure -> value for the model as it is now."""
        ...

    def harm(self, measures: dict[str, float], start: dict[str, float]) -> str:
        """Returns why a model cannot be the best beside the start; empty: it can.

        Args:
            measures: The model's.
            start: The start's.
        """
        return ""


class Average(NamedTuple):
    """A mean of weights that is validated after the last step.

    Args:
        name: For people to read.
        weights: Within it the model has them.
        start_share: How much of them is the start's.
    """

    name: str
    weights: contextlib.AbstractContextManager[None]
    start_share: float = 0.0


class StageCallback(keras.callbacks.Callback):
    """Writes the history, validates, keeps the best model and saves checkpoints, by step.

    Args:
        output: Directory of the run.
        log_every_steps: Steps between lines of the history.
        checkpoint_every_steps: Steps between checkpoints, whatever they are at.
        progress: Stage, step and best measure; kept up to date and saved with each checkpoint.
        last_step: The step at which the stage ends.
        validation: What measures the model, if anything does.
        refresh_every_steps: Steps between refreshes of negatives, which begin with a checkpoint.
        show: Whether history lines are logged too, where no progress bar shows them; and now and
            then, how far it is.
        stop: Set by who wants the training to end; it does after the next step, which is saved.
        times: Adds up where the time goes.
        writes: Whether this process writes files; of several, one does, and all validate.
        num_averages: How many means of weights are validated after the last step.
        min_gain_kept: As `StageConfig` has it.
    """

    def __init__(
        self,
        output: Path,
        progress: Progress,
        *,
        log_every_steps: int,
        checkpoint_every_steps: int,
        refresh_every_steps: int | None = None,
        last_step: int,
        validation: Validation | None,
        show: bool,
        stop: threading.Event | None = None,
        times: StageTimes | None = None,
        writes: bool = True,
        num_averages: int = 0,
        min_gain_kept: float | None = None,
    ) -> None:
        super().__init__()
        self.min_gain_kept = min_gain_kept
        self.num_averages = num_averages
        self.times = times or StageTimes()
        self.output = output
        self.stop = stop
        self._told = 0.0  # when it was last told how far it is
        self._begun = (0.0, 0)  # the end of the first step, which takes longer
        self.log_every_steps = log_every_steps
        self.checkpoint_every_steps = checkpoint_every_steps
        self.refresh_every_steps = refresh_every_steps
        self.progress = progress
        self.last_step = last_step
        self.validation = validation
        self.show = show
        self.writes = writes
        self._rate = 0.0
        self._board = None
        if writes:
            board = str(output / "tensorboard" / progress.stage)
            self._board = tf.summary.create_file_writer(board)
            # A start that is not in the checkpoint is measured again.
            after = progress.step - self._lacks_start()
            forget_history(output / HISTORY_FILE, stage=progress.stage, after=after)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Measures the start, where that is wanted and not done."""
        if self.validation is not None and self._lacks_start():
            began = time.perf_counter()
            self._validate(self.validation)
            minutes = (time.perf_counter() - began) / 60
            more = -(-self.last_step // self.validation.every_steps) + self.num_averages
            said = "as long as this takes each of %d validations to come, %s together"
            logger.info(said, more, _in_minutes(more * minutes))
            if self.stop is not None and self.stop.is_set():
                raise KeyboardInterrupt("before the first step")
        self.times.enter(BATCHES)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the learning rate, which is another after the step."""
        self.times.enter(STEPS)
        if self._due(self.log_every_steps, ahead=1):
            self._rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Does what is due at this step.

        Raises:
            TrainingError: the loss is not finite; nothing of this step is kept.
        """
        self.progress.step += 1
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingError(
                f"stage {self.progress.stage}: the loss must be finite; a lower learning rate, a"
                f" higher temperature or clipping may help. Received: {loss} at step"
                f" {self.progress.step}"
            )
        if self._due(self.log_every_steps):
            values = {name: float(value) for name, value in (logs or {}).items()}
            self.write({**values, "learning_rate": self._rate})
            if self.show:
                shown = "  ".join(f"{name} {value:.4g}" for name, value in sorted(values.items()))
                logger.info("step %d of %d: %s", self.progress.step, self.last_step, shown)
            self.model.reset_metrics()  # each line speaks of its own steps only
        elif self.show:
            self._tell_how_far()
        if self.validation is not None and self._due(self.validation.every_steps):
            self._validate(self.validation)
        due = self._due(self.checkpoint_every_steps)
        # Mining that is killed goes on with the very weights with which it began.
        every = self.refresh_every_steps
        due = due or (every is not None and self._due(every))
        stops = self.stop is not None and self.stop.is_set()
        if self.writes and (due or stops):
            with self.times.within(SAVING):
                save_checkpoint(self.output / CHECKPOINT_FILE, self.model, self.progress)
        self.times.enter(BATCHES)
        if stops:
            raise KeyboardInterrupt(
                f"at step {self.progress.step} of {self.last_step} of stage {self.progress.stage},"
                " which is saved: the same command goes on from there"
            )

    def _tell_how_far(self) -> None:
        """Logs a line with the time left where none was for a while, the first of them sooner."""
        now = time.monotonic()
        if not self._begun[1]:
            self._begun, self._told = (now, self.progress.step), now - _TELL_S + _TELL_FIRST_S
            return
        if now - self._told < _TELL_S:
            return
        self._told = now
        second = (now - self._begun[0]) / (self.progress.step - self._begun[1])
        minutes = (self.last_step - self.progress.step) * second / 60
        said = "step %d of %d: %.1f s a step, %s left"
        logger.info(said, self.progress.step, self.last_step, second, _in_minutes(minutes))

    def validate_averages(self, model: DualEncoder, averages: Sequence[Average]) -> None:
        """Validates means of the trained model; a better one is kept as the best.

        With `min_gain_kept` that is also one which is nearer to the start and good enough.

        Args:
            model: After the last step.
            averages: Those with larger shares of the start come later.
        """
        self.set_model(model)
        for average in averages:
            if self.stop is not None and self.stop.is_set():
                raise KeyboardInterrupt(AFTER_LAST_STEP)
            with average.weights:
                if self.validation is not None:
                    self._validate(self.validation, average)
        self.on_train_end()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Closes the TensorBoard file, and stops the clock."""
        self.times.enter(None)
        if self._board is not None:
            self._board.close()

    def _lacks_start(self) -> bool:
        wanted = self.validation is not None and self.validation.measures_start
        return wanted and self.progress.step == 0 and self.progress.start is None

    def _due(self, every: int, *, ahead: int = 0) -> bool:
        step = self.progress.step + ahead
        return step % every == 0 or step == self.last_step

    def _validate(self, validation: Validation, average: Average | None = None) -> None:
        began = time.perf_counter()
        if self._lacks_start() and self.writes:
            logger.info("measuring the start: %s", validation.extent)
        with self.times.within(VALIDATION):
            measures = validation(self.model)
        if self._lacks_start():
            self.progress.start = measures
        value, start = measures[validation.leading_measure], self.progress.start or {}
        harm = validation.harm(measures, start) if start else ""
        better = not harm and (self.progress.best is None or value > self.progress.best)
        kept, verdict = better, ", the best so far" if better else ""
        if harm:
            verdict = f", away from home: {harm}"
        start_share = 0.0 if average is None else average.start_share
        if start_share and start and not better and not harm:
            share = self._share_of_gain(value, start[validation.leading_measure])
            nearer = start_share > self.progress.kept_share
            kept = nearer and self.min_gain_kept is not None and share >= self.min_gain_kept
            verdict = f", {share:.0%} of what the best won" if share > 0 else ""
            verdict += ", and nearer to the start: kept" if kept else ""
        if better:
            self.progress.best = value
        if kept:
            self.progress.kept_share = start_share
        if kept and self.writes:
            with self.times.within(SAVING):
                self.model.save_to_preset(self.output / BEST_MODEL)
        about: dict[str, Any] = {} if average is None else {"averaged": average.name}
        logger.info(
            "\nstep %d%s: %s (%s, %.0f s)%s",
            self.progress.step,
            f", averaged {average.name}" if average is not None else "",
            "  ".join(
                f"{name} {value:.4f}" + (f" ({value - start[name]:+.4f})" if start else "")
                for name, value in measures.items()
            ),
            validation.extent,
            time.perf_counter() - began,
            verdict,
        )
        about |= {"harm": harm} if harm else {}
        self.write(measures, validated_on=validation.extent, kept=kept, **about)

    def _share_of_gain(self, value: float, start: float) -> float:
        won = (self.progress.best or 0.0) - start
        return (value - start) / won if won > 0 else 0.0

    def write(self, values: dict[str, float], **about: Any) -> None:
        """Adds a line of the step that is done to the history, and its values to TensorBoard."""
        if self._board is None:
            return
        record = {"stage": self.progress.stage, "step": self.progress.step, **values, **about}
        with (self.output / HISTORY_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if "averaged" in about:  # no model of this step
            return
        with self._board.as_default(step=self.progress.step):
            for name, value in values.items():
                tf.summary.scalar(name, value)


def _in_minutes(minutes: float) -> str:
    return "a minute" if minutes <= 1 else f"some {math.ceil(minutes)} minutes"


def forget_history(path: Path, *, stage: str, after: int) -> None:
    """Drops the lines of a stage's steps that will be trained again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the line being written when the run was killed
            continue
        # Means with the start are validated anew wherever the stage is taken up.
        if record["stage"] != stage or (record["step"] <= after and "averaged" not in record):
            kept.append(line + "\n")
    with atomic_file(path) as temporary:
        temporary.write_text("".join(kept), "utf-8")
