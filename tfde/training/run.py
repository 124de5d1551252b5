"""A training run from its description: build, train stage after stage, go on after a kill."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.config.backbones import backbone_from_mapping
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.errors import ConfigError
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.read_tokenizer import read_tokenizer
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.tokenizer import Tokenizer
from tfde.towers.change_sharing import check_resharing, reshare
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.pair_trainer import PairTrainer
from tfde.towers.preset import is_preset
from tfde.towers.sharing import check_freeze, frozen_parts
from tfde.training.build_task import build_task, check_task
from tfde.training.callbacks import RetrievalValidation, StageCallback
from tfde.training.checkpoint import Progress, read_progress, restore_checkpoint
from tfde.training.checks import (
    build_page_stores,
    check_replicas,
    check_stages,
    stage_pairs,
    stage_steps,
)
from tfde.training.devices import (
    choose_distribution,
    choose_jit_compile,
    choose_precision,
    count_processes,
    list_devices,
)
from tfde.training.distribution import is_chief, lost_processes, open_strategy, wait_for_all
from tfde.training.early_checks import check_run, errors_of_stage, expand_run
from tfde.training.masked_language_model import MaskedLanguageModel, check_encoder
from tfde.training.negative_refresh import NegativeRefresh, check_refreshes
from tfde.training.optimizers import build_optimizer
from tfde.training.run_record import (
    CHECKPOINT_FILE,
    NEGATIVES,
    PAGES,
    VOCABULARY_FILE,
    checkpoint_checksums,
    data_checksums,
    open_output,
)
from tfde.training.training_card import write_training_cards

logger = logging.getLogger("tfde")

_TRAINED_VOCABULARY = 8000


def train(run: TrainRun, output: str | Path, *, verbose: int | None = None) -> DualEncoder:
    """Trains a model by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json` (the resolved run, versions, checksums), `history.jsonl`,
    `tensorboard/`, `checkpoint.safetensors`, `model/` (the last weights), with validation
    `best_model/`, and with refreshed negatives the last pair file of each stage in `negatives/`.

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
    stores = output / PAGES
    if verbose is None:
        verbose = int(sys.stdout.isatty())
    distribution = choose_distribution(run.distribution, list_devices(), environment=os.environ)
    if distribution == "multi_worker":
        processes = count_processes(os.environ["TF_CONFIG"])
        check_replicas(run, processes)  # each has at least one
        logger.info("waiting until all %d processes that TF_CONFIG names are there", processes)
    with lost_processes(timeout_s=run.collective_timeout_s):
        # First of all: processes cannot join any more once TensorFlow has done anything.
        strategy = open_strategy(distribution, timeout_s=run.collective_timeout_s)
        check_run(run)
        check_refreshes(run)
        check_stages(run, stores, with_pages=False)
        check_replicas(run, strategy.num_replicas_in_sync)
        chief = is_chief(strategy)
        guides = (stage.guide.model for stage in run.stages.values() if stage.guide is not None)
        starts = checkpoint_checksums(run.model.backbone, run.model.tokenizer, *guides)
        with open_output(output, run, data_checksums(run) | starts) if chief else nullcontext():
            if chief:
                build_page_stores(run, stores)
            wait_for_all(strategy)
            check_stages(run, stores, with_pages=True)
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
    sharing, projected = model.config.sharing, bool(model.config.projection)
    dim = model.embedding_dim
    for name, stage in run.stages.items():  # what is wrong with the last is found before the first
        with errors_of_stage(name):
            sharing = check_resharing(sharing, stage.sharing)
            projected = projected or stage.embedding_dim is not None
            check_freeze(sharing, stage.freeze, projected=projected)
            dim = stage.embedding_dim or dim
            check_task(stage, embedding_dim=dim)
            _stage_preprocessor(model, stage)
            if stage.objective == "masked_lm":
                check_encoder(model)
    checkpoint = output / CHECKPOINT_FILE
    names = list(run.stages)
    progress = Progress(names[0])
    if checkpoint.exists():
        progress = read_progress(checkpoint)
        logger.info("an earlier run is taken up: stage %s, step %d", progress.stage, progress.step)
    first = names.index(progress.stage)
    for number, (name, stage) in enumerate(run.stages.items()):
        if stage.sharing is not None or stage.embedding_dim is not None:
            # Dropout and a new projection are those of the run that is taken up here too.
            keras.utils.set_random_seed(run.seed)
            model = reshare(model, stage.sharing, embedding_dim=stage.embedding_dim)
        if number > first:
            alone = run.competing_stages(name) == [name]
            progress = Progress(name, best=None if alone else progress.best)
        if number >= first:
            _train_stage(model, run, output, progress, verbose)
    if is_chief(tf.distribute.get_strategy()):
        model.save_to_preset(output / "model")
        validations = [s.validation for s in run.stages.values() if s.validation is not None]
        leading = validations[-1].measures[0] if validations else None
        competing = run.competing_stages(names[-1])
        write_training_cards(output, command="tfde train", leading=leading, stages=competing)
        logger.info("model written to %s", output / "model")
    return model


def _train_stage(
    model: DualEncoder, run: TrainRun, output: Path, progress: Progress, verbose: int
) -> None:
    """Trains the stage that `progress` names, from its step on."""
    stage = run.stages[progress.stage]
    batches = stage_pairs(stage, run.seed, output / PAGES)
    total = stage_steps(stage, batches)
    strategy = tf.distribute.get_strategy()
    chief = is_chief(strategy)
    trained: PairTrainer = model
    if stage.objective == "masked_lm":
        trained = MaskedLanguageModel(model, seed=run.seed)
    with frozen_parts(model.towers, stage.freeze):
        trained.compile(
            build_optimizer(stage.optimizer, steps=total),
            task=build_task(stage, model, start=str(run.model.backbone)),
            chunk_size=stage.chunk_size,
            jit_compile=choose_jit_compile(
                run.jit_compile,
                list_devices(),
                replicas=strategy.num_replicas_in_sync,
                chunk_size=stage.chunk_size,
            ),
        )
        if progress.step:
            restore_checkpoint(output / CHECKPOINT_FILE, trained)
        if progress.step >= total:
            return
        logger.info(
            "stage %s: %d pairs, batches of %d, step %d of %d; the first step takes longer",
            *(progress.stage, len(batches), stage.batch_size, progress.step, total),
        )
        validation = refresh = None
        if stage.validation is not None:
            validation = RetrievalValidation(stage.validation, seed=run.seed)
        if stage.refresh is not None:
            folder = output / NEGATIVES / progress.stage
            stores = output / PAGES
            refresh = NegativeRefresh(
                stage, stage.refresh, folder, own=batches, stores=stores, seed=run.seed
            )
        while progress.step < total:
            recorder = StageCallback(
                output,
                progress,
                log_every_steps=stage.log_every_steps,
                checkpoint_every_steps=stage.checkpoint_every_steps,
                refresh_every_steps=None if stage.refresh is None else stage.refresh.every_steps,
                last_step=total,
                validation=validation,
                show=chief and not verbose,
                writes=chief,
            )
            stop = total
            if refresh is not None:
                if chief and refresh.is_due(progress.step):
                    recorder.write(refresh.mine(model, progress.step))
                wait_for_all(strategy)
                batches = refresh.batches(progress.step)
                stop = min(refresh.next_step(progress.step), total)
            trained.fit(
                batches,
                steps=stop,
                initial_step=progress.step,
                preprocessor=_stage_preprocessor(model, stage),
                callbacks=[recorder],
                verbose=verbose,
            )


def _stage_preprocessor(model: DualEncoder, stage: StageConfig) -> TextPreprocessor | None:
    """Returns what cuts texts where the stage says; `None` where it says nothing.

    Raises:
        ConfigError: a length is above the model's, for which it may have no positions.
    """
    text = model.preprocessor.text_config
    lengths = {
        name: length
        for name in ("query_max_length_tokens", "document_max_length_tokens")
        if (length := getattr(stage, name)) is not None
    }
    for name, length in lengths.items():
        if length > getattr(text, name):
            raise ConfigError(
                f"`{name}` of a stage must be at most the model's, {getattr(text, name)}."
                f" Received: {length}"
            )
    if not lengths:
        return None
    return TextPreprocessor(model.preprocessor.tokenizer, dataclasses.replace(text, **lengths))


def _build_model(run: TrainRun, output: Path) -> DualEncoder:
    config = run.model
    if isinstance(config.backbone, str) and is_preset(config.backbone):
        # Not in the dtype it was saved in: bfloat16 weights would round small updates away.
        defaults = ModelConfig(config.backbone)
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if value != getattr(defaults, field.name):
                logger.warning("model.%s is ignored: %s has its own", field.name, config.backbone)
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
        num_layers=config.num_layers,
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
        pairs = stage_pairs(next(iter(run.stages.values())), run.seed, output / PAGES)
        size = int(run.model.backbone.get("vocabulary_size", _TRAINED_VOCABULARY))  # type: ignore[union-attr]
        logger.info("training a vocabulary of %d tokens", size)
        train_sentencepiece(pairs.texts(), path, vocabulary_size=size)
    wait_for_all(strategy)
    return SentencePieceTokenizer.from_file(path)
