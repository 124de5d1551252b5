"""A training run from its description: build, train stage after stage, go on after a kill."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.config import TrainRun, backbone_from_mapping
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.text.read_tokenizer import read_tokenizer
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import Tokenizer
from tfde.text.train_sentencepiece import train_sentencepiece
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import is_preset
from tfde.training.callbacks import RetrievalValidation, StageCallback
from tfde.training.checkpoint import Progress, read_progress, restore_checkpoint
from tfde.training.checks import (
    check_replicas,
    check_run,
    expand_run,
    stage_pairs,
    stage_steps,
)
from tfde.training.devices import (
    choose_distribution,
    choose_jit_compile,
    choose_precision,
    list_devices,
)
from tfde.training.distribution import is_chief, lost_processes, open_strategy, wait_for_all
from tfde.training.optimizers import build_optimizer
from tfde.training.run_record import CHECKPOINT_FILE, VOCABULARY_FILE, open_output

logger = logging.getLogger("tfde")

_TRAINED_VOCABULARY = 8000


def train(run: TrainRun, output: str | Path, *, verbose: int | None = None) -> DualEncoder:
    """Trains a model by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json` (the resolved run, versions, data checksums), `history.jsonl`,
    `tensorboard/`, `checkpoint.safetensors`, `model/` (the last weights) and, with validation,
    `best_model/`.

    Args:
        run: What to train.
        output: Directory of the run; that of an interrupted run is continued.
        verbose: 1 for Keras' progress bar, 0 for log lines in its place; `None` takes the bar where
            stdout is a terminal.

    Returns:
        The trained model.

    Raises:
        ConfigError: something the run names is missing or impossible (found before any work), or
            `output` holds another run.
        TrainingError: the loss is not finite.
        LostProcessError: another process of the run is gone.
    """
    run = expand_run(run)
    output = Path(output)
    if verbose is None:
        verbose = int(sys.stdout.isatty())
    distribution = choose_distribution(run.distribution, list_devices(), environment=os.environ)
    with lost_processes(timeout_s=run.collective_timeout_s):
        # First of all: processes cannot join any more once TensorFlow has done anything.
        strategy = open_strategy(distribution, timeout_s=run.collective_timeout_s)
        check_run(run)
        check_replicas(run, strategy.num_replicas_in_sync)
        chief = is_chief(strategy)
        with open_output(output, run) if chief else nullcontext():
            wait_for_all(strategy)
            with strategy.scope():
                model = _train(run, output, verbose if chief else 0)
            wait_for_all(strategy)  # a process that leaves early is a lost one to the others
    return model


def _train(run: TrainRun, output: Path, verbose: int) -> DualEncoder:
    if run.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(run.seed)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(choose_precision(run.precision, list_devices()))
    try:
        return _train_stages(run, output, verbose)
    finally:
        keras.config.set_dtype_policy(previous)


def _train_stages(run: TrainRun, output: Path, verbose: int) -> DualEncoder:
    model = _build_model(run, output)
    checkpoint = output / CHECKPOINT_FILE
    names = list(run.stages)
    progress = read_progress(checkpoint) if checkpoint.exists() else Progress(names[0])
    for name in names[names.index(progress.stage) :]:
        if name != progress.stage:
            progress = Progress(name)
        _train_stage(model, run, output, progress, verbose)
    if is_chief(tf.distribute.get_strategy()):
        model.save_to_preset(output / "model")
        logger.info("model written to %s", output / "model")
    return model


def _train_stage(
    model: DualEncoder, run: TrainRun, output: Path, progress: Progress, verbose: int
) -> None:
    """Trains the stage that `progress` names, from its step on."""
    stage = run.stages[progress.stage]
    batches = stage_pairs(stage, run.seed)
    total = stage_steps(stage, batches)
    strategy = tf.distribute.get_strategy()
    chief = is_chief(strategy)
    model.compile(
        build_optimizer(stage.optimizer, steps=total),
        task=RetrievalTask(
            stage.temperature,
            bidirectional=stage.bidirectional,
            sampling_correction=stage.sampling_correction,
        ),
        chunk_size=stage.chunk_size,
        jit_compile=choose_jit_compile(
            run.jit_compile,
            list_devices(),
            replicas=strategy.num_replicas_in_sync,
            chunk_size=stage.chunk_size,
        ),
    )
    if progress.step:
        restore_checkpoint(output / CHECKPOINT_FILE, model)
    if progress.step >= total:
        return
    logger.info(
        "stage %s: %d pairs, batches of %d, step %d of %d",
        *(progress.stage, len(batches), stage.batch_size, progress.step, total),
    )
    validation = None
    if stage.validation is not None:
        validation = RetrievalValidation(stage.validation, seed=run.seed)
    recorder = StageCallback(
        output,
        stage,
        progress,
        last_step=total,
        validation=validation,
        show=chief and not verbose,
        writes=chief,
    )
    model.fit(
        batches,
        steps=total,
        initial_step=progress.step,
        callbacks=[recorder],
        verbose=verbose,
    )


def _build_model(run: TrainRun, output: Path) -> DualEncoder:
    config = run.model
    if isinstance(config.backbone, str) and is_preset(config.backbone):
        # Not in the dtype it was saved in: bfloat16 weights would round small updates away.
        dtype = choose_precision(run.precision, list_devices())
        return DualEncoder.from_preset(config.backbone, dtype=dtype)
    backbone: Any = config.backbone
    tokenizer = None
    if isinstance(backbone, dict):
        backbone = dict(backbone)
        tokenizer = _tokenizer(run, output)
        backbone.setdefault("vocabulary_size", tokenizer.vocabulary_size)
        backbone = backbone_from_mapping(backbone, "model.backbone")
    return DualEncoder.from_backbone(
        backbone,
        sharing=config.sharing,
        tokenizer=tokenizer,
        text=config.text,
        pooling=config.pooling,
        embedding_dim=config.embedding_dim,
        projection_bias=config.projection_bias,
        normalize=config.normalize,
        dropout=config.dropout,
        seed=run.seed,
    )


def _tokenizer(run: TrainRun, output: Path) -> Tokenizer:
    """The tokenizer of random weights: the given one, or one trained on the first stage."""
    if run.model.tokenizer is not None:
        return read_tokenizer(run.model.tokenizer)
    path = output / VOCABULARY_FILE
    strategy = tf.distribute.get_strategy()
    if is_chief(strategy) and not path.exists():
        table = stage_pairs(next(iter(run.stages.values())), run.seed).table
        size = int(run.model.backbone.get("vocabulary_size", _TRAINED_VOCABULARY))  # type: ignore[union-attr]
        logger.info("training a vocabulary of %d tokens", size)
        texts = itertools.chain(
            (query.text for query in table.queries),
            (f"{document.title} {document.text}" for document in table.documents),
        )
        train_sentencepiece(texts, path, vocabulary_size=size)
    wait_for_all(strategy)
    return SentencePieceTokenizer.from_file(path)
