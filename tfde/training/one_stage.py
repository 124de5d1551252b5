"""A run of one stage: compiled, taken up where it stopped, fitted, written."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfde.config.matching import MatchRun
from tfde.config.phrases import PhraseRun
from tfde.training.callbacks import StageCallback, Validation
from tfde.training.checkpoint import Progress, read_progress, restore_checkpoint
from tfde.training.interrupts import interrupts
from tfde.training.optimizers import build_optimizer
from tfde.training.run_record import CHECKPOINT_FILE

logger = logging.getLogger("tfde")


def train_one_stage(
    trainer: Any,
    run: MatchRun | PhraseRun,
    output: Path,
    *,
    stage: str,
    steps: int,
    extent: str,
    fit: Callable[[int, StageCallback], Any],
    checkpoint_every_steps: int,
    validation: Validation | None = None,
    show: bool,
) -> None:
    """Trains in place, from the step on that a checkpoint in `output` has, and writes `model/`.

    Args:
        trainer: What is compiled, restored and saved.
        run: Its optimizer, the share of steps that warm up, and steps between log lines.
        output: Directory of the run, open for it.
        stage: The name in checkpoints.
        steps: Of the whole training.
        extent: What it goes through, for the log: "4000 pairs, batches of 32".
        fit: Trains from a step on to the last, with a callback.
        checkpoint_every_steps: Steps between checkpoints.
        validation: Measures the model.
        show: Whether log lines tell of the progress.
    """
    warmup = min(int(run.warmup * steps), steps - 1)
    optimizer = dataclasses.replace(run.optimizer, warmup_steps=warmup)
    trainer.compile(build_optimizer(optimizer, steps=steps))
    progress = Progress(stage)
    checkpoint = output / CHECKPOINT_FILE
    if checkpoint.exists():
        progress = read_progress(checkpoint)
        restore_checkpoint(checkpoint, trainer)
        logger.info("an earlier run is taken up: step %d", progress.step)
    text = "%s, step %d of %d; the first step takes longer"
    logger.info(text, extent, progress.step, steps)
    if progress.step < steps:
        with interrupts(alone=True) as stop:
            recorder = StageCallback(
                output,
                progress,
                log_every_steps=run.log_every_steps,
                checkpoint_every_steps=checkpoint_every_steps,
                last_step=steps,
                validation=validation,
                show=show,
                stop=stop,
            )
            fit(progress.step, recorder)
        logger.info("training took %s", recorder.times)
    trainer.save_to_preset(output / "model")
