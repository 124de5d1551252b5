"""What a run's description must satisfy before any work starts."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from tfde.config import TrainRun, backbone_from_mapping
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError


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
        tokenizer = run.model.tokenizer
        if tokenizer is not None and not Path(tokenizer).exists():
            raise ConfigError(f"model.tokenizer: {tokenizer} does not exist.")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ConfigError(
                f"stages: a name holds letters, digits, '_', '.' and '-'. Received: {name!r}"
            )


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
