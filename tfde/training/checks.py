"""What a run's description must satisfy before any work starts."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from tfde.config import Sharing, StageConfig, TrainRun, backbone_from_mapping
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs import PairDataset, pairs
from tfde.errors import ConfigError
from tfde.evaluation.measures import parse_measures
from tfde.training.optimizers import build_optimizer


def expand_run(run: TrainRun) -> TrainRun:
    """Returns the run with `${NAME}` in its paths replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """
    model = dataclasses.replace(
        run.model,
        backbone=_expand(run.model.backbone, "model.backbone"),
        tokenizer=_expand(run.model.tokenizer, "model.tokenizer"),
    )
    stages = {}
    for name, stage in run.stages.items():
        where = f"stages.{name}"
        validation = stage.validation
        if validation is not None:
            validation = dataclasses.replace(
                validation, dataset=_expand(validation.dataset, f"{where}.validation.dataset")
            )
        stages[name] = dataclasses.replace(
            stage,
            data=_expand(stage.data, f"{where}.data"),
            dataset=_expand(stage.dataset, f"{where}.dataset"),
            validation=validation,
        )
    return dataclasses.replace(run, model=model, stages=stages)


def check_run(run: TrainRun) -> None:
    """Finds what would fail later, before any work.

    Raises:
        ConfigError: a file or split is missing, a description is impossible.
    """
    if isinstance(run.model.backbone, dict):
        backbone_from_mapping(run.model.backbone, "model.backbone")
    if run.model.sharing is not None:
        Sharing.of(run.model.sharing)
    tokenizer = run.model.tokenizer
    if tokenizer is not None and not Path(tokenizer).exists():
        raise ConfigError(f"model.tokenizer: {tokenizer} does not exist.")
    for name, stage in run.stages.items():
        path = Path(stage.data)
        if not path.exists():
            raise ConfigError(f"stages.{name}.data: {path} does not exist.")
        if path.is_dir():
            DatasetDirectory(path).qrels_file(stage.split)
        if stage.dataset is not None:
            DatasetDirectory(stage.dataset)
        if stage.validation is not None:
            DatasetDirectory(stage.validation.dataset).qrels_file(stage.validation.split)
            parse_measures(stage.validation.measures)
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ConfigError(
                f"stages: a name holds letters, digits, '_', '.' and '-'. Received: {name!r}"
            )
    # Reading all pairs takes seconds; a fault in the last stage found after the first, hours.
    for stage in run.stages.values():
        build_optimizer(stage.optimizer, steps=stage_steps(stage, stage_pairs(stage, run.seed)))


def check_replicas(run: TrainRun, replicas: int) -> None:
    """Finds batches that replicas cannot share out evenly.

    Raises:
        ConfigError: a stage has such batches.
    """
    for name, stage in run.stages.items():
        if stage.batch_size % replicas:
            raise ConfigError(
                f"stages.{name}.batch_size must be a multiple of the {replicas} replicas, which"
                f" share its rows out evenly. Received: {stage.batch_size}"
            )


def stage_pairs(stage: StageConfig, seed: int) -> PairDataset:
    """Returns the batches of a stage.

    Raises:
        ConfigError, DataError: the pairs cannot be read or batched so.
    """
    return pairs(
        stage.data,
        split=stage.split,
        dataset=stage.dataset,
        batch_size=stage.batch_size,
        negatives_per_query=stage.negatives_per_query,
        limit=stage.limit,
        seed=seed,
    )


def stage_steps(stage: StageConfig, batches: PairDataset) -> int:
    """Returns how many steps a stage trains."""
    return stage.steps or (stage.epochs or 1) * batches.steps_per_epoch


def _expand(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    expanded = os.path.expanduser(os.path.expandvars(value))
    missing = re.search(r"\$\{?(\w+)", expanded)
    if missing:
        raise ConfigError(
            f"{where}: the environment variable {missing.group(1)} is not set. Received: {value!r}"
        )
    return expanded
