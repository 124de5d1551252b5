"""A training run from its description: build, train stage after stage, go on after a kill."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfde.config.training import StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import naming
from tfde.towers.average import averaged, float32_weights
from tfde.towers.change_sharing import check_resharing, reshare, set_adapters, without_adapters
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import is_preset
from tfde.towers.sharing import check_adapters, check_freeze, frozen_parts
from tfde.training.built_parts import build_model, build_task, check_task, stage_preprocessor
from tfde.training.callbacks import Average, StageCallback
from tfde.training.checkpoint import Progress, read_progress, restore_checkpoint
from tfde.training.checks import (
    check_replicas,
    check_stages,
)
from tfde.training.devices import (
    choose_distribution,
    choose_jit_compile,
    count_processes,
    in_precision,
    list_devices,
)
from tfde.training.distribution import (
    is_alone,
    is_chief,
    lost_processes,
    open_strategy,
    wait_for_all,
)
from tfde.training.early_checks import check_run, errors_of_stage, expand_run
from tfde.training.interrupts import interrupts
from tfde.training.masked_language_model import MaskedLanguageModel, check_encoder
from tfde.training.negative_refresh import NegativeRefresh
from tfde.training.optimizers import averaged_over_steps, build_optimizer
from tfde.training.retrieval_validation import RetrievalValidation, check_documents
from tfde.training.run_record import (
    CHECKPOINT_FILE,
    NEGATIVES,
    PAGES,
    TOPICS,
    checkpoint_checksums,
    data_checksums,
    open_output,
)
from tfde.training.stage_data import StageData, stage_steps
from tfde.training.stage_times import FINDING_TOPICS, MINING, StageTimes
from tfde.training.stage_topics import find_topics, with_topics
from tfde.training.training_card import write_training_cards

logger = logging.getLogger("tfde")


def train(run: TrainRun, output: str | Path, *, verbose: int | None = None) -> DualEncoder:
    """Trains a model by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json` (the resolved run, versions, checksums), `history.jsonl`,
    `tensorboard/`, `checkpoint.safetensors`, `model/` (the last weights), with validation
    `best_model/`, with refreshed negatives the last pair file of each stage in `negatives/`, and
    with `topic_size` the topics of each stage in `topics/`.

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
    data = StageData(seed=run.seed, stores=output / PAGES)
    if verbose is None:
        verbose = int(sys.stdout.isatty())
    distribution = choose_distribution(run.distribution, list_devices(), environment=os.environ)
    together = distribution == "multi_worker"
    if together:
        processes = count_processes(os.environ["TF_CONFIG"])
        check_replicas(run, processes)  # each has at least one
        logger.info("waiting until all %d processes that TF_CONFIG names are there", processes)
    with lost_processes(timeout_s=run.collective_timeout_s) if together else nullcontext():
        # First of all: processes cannot join any more once TensorFlow has done anything.
        strategy = open_strategy(distribution, timeout_s=run.collective_timeout_s)
        check_run(run)
        check_stages(run, data, with_pages=False)
        check_replicas(run, strategy.num_replicas_in_sync)
        chief = is_chief(strategy)
        stages = run.stages.values()
        others = [other.model for stage in stages for other in stage.other_models.values()]
        starts = checkpoint_checksums(run.model.backbone, run.model.tokenizer, *others)
        with open_output(output, run, data_checksums(run) | starts) if chief else nullcontext():
            if chief:
                data.build_page_stores(run)
            wait_for_all(strategy)
            check_stages(run, data, with_pages=True)
            with strategy.scope():
                model = _train(run, data, output, verbose if chief else 0)
            wait_for_all(strategy)  # a process that leaves early is a lost one to the others
    return model


def _train(run: TrainRun, data: StageData, output: Path, verbose: int) -> DualEncoder:
    if run.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(run.seed)
    with in_precision(run.precision):
        return _train_stages(run, data, output, verbose)


def _train_stages(run: TrainRun, data: StageData, output: Path, verbose: int) -> DualEncoder:
    model = build_model(run, data, output)
    _check_built(run, model)
    wanted = any(stage.start_shares for stage in run.stages.values())
    start = float32_weights(without_adapters(model)) if wanted else {}
    names = list(run.stages)
    progress, finished = _progress_of(run, output)
    first = names.index(progress.stage)
    for number, (name, stage) in enumerate(run.stages.items()):
        if stage.sharing is not None or stage.embedding_dim is not None:
            # Dropout and a new projection are those of the run that is taken up here too.
            keras.utils.set_random_seed(run.seed)
            model = reshare(model, stage.sharing, embedding_dim=stage.embedding_dim)
        if model.config.lora != stage.lora:
            keras.utils.set_random_seed(run.seed)
            set_adapters(model, stage.lora)
        if number > first:
            alone = run.competing_stages(name) == [name]
            progress = Progress(name) if alone else replace(progress, stage=name, step=0)
        if number >= first:
            _train_stage(
                model, run, data, output, progress, verbose, start=start, finished=finished
            )
    if is_chief(tf.distribute.get_strategy()):
        _finish(run, model, output, progress, finished=finished)
    return model


def _check_built(run: TrainRun, model: DualEncoder) -> None:
    """Finds what is wrong with the last stage before the first begins."""
    sharing, projected = model.config.sharing, model.config.is_projected
    dim = model.embedding_dim
    # A model directory has its own, whatever the run says.
    own = isinstance(run.model.backbone, str) and is_preset(run.model.backbone)
    stored_dim = dim if own or run.model.embedding_dim is None else None
    for name, stage in run.stages.items():
        with errors_of_stage(name):
            sharing = check_resharing(sharing, stage.sharing)
            projected = projected or stage.embedding_dim is not None
            check_freeze(
                model.towers.query_parts.encoder,
                sharing,
                stage.freeze,
                layers=stage.freeze_layers,
                projected=projected,
            )
            dim = stage.embedding_dim or dim
            check_task(stage, embedding_dim=dim, new_dim=dim != stored_dim)
            if stage.lora is not None:
                encoder = model.towers.query_parts.encoder
                check_adapters(encoder, stage.lora, trains=sharing.encoder != "frozen")
            stage_preprocessor(model, stage)
            if stage.objective == "masked_lm":
                check_encoder(model)
            for inside, measured in stage.validation.measured().items() if stage.validation else ():
                with naming(f"validation{inside}"):
                    check_documents(model, DatasetDirectory(measured.dataset).documents())


def _progress_of(run: TrainRun, output: Path) -> tuple[Progress, bool]:
    """Returns where the run stands, and whether nothing is left to do."""
    checkpoint = output / CHECKPOINT_FILE
    if not checkpoint.exists():
        return Progress(next(iter(run.stages))), False
    finished = (output / "model").exists()  # written when all else is done
    progress = read_progress(checkpoint)
    where = "is finished" if finished else "is taken up"
    logger.info("an earlier run %s: stage %s, step %d", where, progress.stage, progress.step)
    return progress, finished


def _finish(
    run: TrainRun, model: DualEncoder, output: Path, progress: Progress, *, finished: bool
) -> None:
    """Writes the model and the cards."""
    if not finished:
        model.save_to_preset(output / "model")
    validations = [s.validation for s in run.stages.values() if s.validation is not None]
    leading = validations[-1].measures[0] if validations else None
    if leading and progress.start and progress.best == progress.start[leading]:
        logger.info("no trained model was better than the start, which best_model/ holds")
    competing = run.competing_stages(list(run.stages)[-1])
    write_training_cards(output, command="tfde train", leading=leading, stages=competing)
    if not finished:
        logger.info("model written to %s", output / "model")


def averages_of(
    stage: StageConfig,
    model: DualEncoder,
    start: Mapping[str, np.ndarray],
    optimizer: keras.optimizers.Optimizer,
) -> list[Average]:
    """Returns a stage's means of a model's weights, each to be entered once, nearest last."""
    averages = []
    if stage.ema_momentum is not None:
        averages.append(Average("over the steps", averaged_over_steps(optimizer)))
    for share in sorted(stage.start_shares):
        name = f"with {share:g} of the start"
        averages.append(Average(name, averaged(model, start, share), share))
    return averages


def _train_stage(
    model: DualEncoder,
    run: TrainRun,
    data: StageData,
    output: Path,
    progress: Progress,
    verbose: int,
    *,
    start: Mapping[str, np.ndarray],
    finished: bool,
) -> None:
    """Trains the stage that `progress` names, from its step on.

    Args:
        start: `float32_weights` of the model that the run started from, for `start_shares`.
        finished: Nothing is left to do, and the model gets the weights that it had at the end.
    """
    stage = run.stages[progress.stage]
    strategy = tf.distribute.get_strategy()
    chief = is_chief(strategy)
    times = StageTimes()
    if stage.topic_size is not None:
        topics = output / TOPICS / f"{progress.stage}.jsonl.gz"
        if chief and not progress.step:
            with times.within(FINDING_TOPICS):
                find_topics(topics, stage, model, data)
        wait_for_all(strategy)
        stage = with_topics(topics, stage)
    batches = data.batches(stage)
    total = stage_steps(stage, batches)
    trained: DualEncoder | MaskedLanguageModel = model
    if stage.objective == "masked_lm":
        trained = MaskedLanguageModel(model, seed=run.seed)
    frozen = frozen_parts(model.towers, stage.freeze, layers=stage.freeze_layers)
    with frozen, interrupts(alone=is_alone(strategy)) as stop:
        trained.compile(
            build_optimizer(stage.optimizer, steps=total, ema_momentum=stage.ema_momentum),
            task=build_task(stage, model, start=str(run.model.backbone)),
            chunk_size=stage.chunk_size,
            jit_compile=choose_jit_compile(
                run.jit_compile,
                list_devices(),
                replicas=strategy.num_replicas_in_sync,
                chunk_size=stage.chunk_size,
            ),
        )
        # Also where nothing is left to train: a checkpoint holds weights, not what they serve for.
        model.note_task(trained.compiled_task())
        if progress.step:
            restore_checkpoint(output / CHECKPOINT_FILE, trained)
        averages = averages_of(stage, model, start, trained.optimizer)
        if progress.step >= total and (finished or not averages):
            return
        began = f", from step {progress.step} on" if progress.step else ""
        logger.info(
            "stage %s: %d pairs, batches of %d, step %d of %d; the first step takes longer",
            *(progress.stage, batches.num_pairs, stage.batch_size, progress.step, total),
        )
        validation = refresh = None
        if stage.validation is not None:
            validation = RetrievalValidation(stage.validation, seed=run.seed)
        if stage.refresh is not None:
            folder = output / NEGATIVES / progress.stage
            refresh = NegativeRefresh(stage, stage.refresh, folder, data=data)
        recorder = functools.partial(
            StageCallback,
            output,
            progress,
            log_every_steps=stage.log_every_steps,
            checkpoint_every_steps=stage.checkpoint_every_steps,
            refresh_every_steps=None if stage.refresh is None else stage.refresh.every_steps,
            last_step=total,
            validation=validation,
            show=chief and not verbose,
            stop=stop,
            times=times,
            writes=chief,
            num_averages=len(averages),
            min_gain_kept=stage.min_gain_kept,
        )
        while progress.step < total:
            records = recorder()
            end = total
            if refresh is not None:
                if stop.is_set():
                    raise KeyboardInterrupt(f"at step {progress.step}: the same command goes on")
                if chief and refresh.is_due(progress.step):
                    with times.within(MINING):
                        mined = refresh.mine(model, progress.step)
                    records.write(mined)
                wait_for_all(strategy)
                batches = refresh.batches(progress.step)
                end = min(refresh.next_step(progress.step), total)
            trained.fit(
                batches,
                steps=end,
                initial_step=progress.step,
                preprocessor=stage_preprocessor(model, stage),
                callbacks=[records],
                verbose=verbose,
            )
        if averages:
            recorder().validate_averages(model, averages)
        logger.info("stage %s%s took %s", progress.stage, began, times)
