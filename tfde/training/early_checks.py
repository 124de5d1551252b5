"""What can be told of a run before TensorFlow is imported, which takes a minute on a cold machine.

Nothing here may import it: `tfde train` and its like look here first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.config.backbones import backbone_from_mapping
from tfde.config.matching import SCORE_ALONE, MatchRun
from tfde.config.model import Sharing
from tfde.config.training import SourceConfig, StageConfig, TrainRun
from tfde.config.validation import ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.query_sample import sample_queries
from tfde.errors import ConfigError, naming, require
from tfde.evaluation.answer_matching import AnswerTexts
from tfde.evaluation.measures import needs_answers
from tfde.pretraining.pair_stream import check_tasks
from tfde.storage.json_file import read_json_file

Source = TypeVar("Source", StageConfig, SourceConfig)


def expand_run(run: TrainRun) -> TrainRun:
    """Returns the run with `${NAME}` in its paths replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """
    model = dataclasses.replace(
        run.model,
        backbone=expand_path(run.model.backbone, "model.backbone"),
        tokenizer=expand_path(run.model.tokenizer, "model.tokenizer"),
    )
    stages = {}
    for name, stage in run.stages.items():
        where = f"stages.{name}"
        validation = stage.validation
        if validation is not None:
            validation = _expand_validation(validation, f"{where}.validation")
        others: dict[str, Any] = {
            part: dataclasses.replace(
                other, model=expand_path(other.model, f"{where}.{part}.model")
            )
            for part, other in stage.other_models.items()
        }
        stages[name] = dataclasses.replace(
            _expand_source(stage, where),
            **others,
            mixture=tuple(
                _expand_source(source, f"{where}.mixture[{place}]")
                for place, source in enumerate(stage.mixture)
            ),
            validation=validation,
        )
    return dataclasses.replace(run, model=model, stages=stages)


def _expand_validation(validation: ValidationConfig, where: str) -> ValidationConfig:
    guards = {
        name: dataclasses.replace(
            guard, dataset=expand_path(guard.dataset, f"{where}.guards.{name}.dataset")
        )
        for name, guard in validation.guards.items()
    }
    dataset = expand_path(validation.dataset, f"{where}.dataset")
    return dataclasses.replace(validation, dataset=dataset, guards=guards)


def check_run(run: TrainRun) -> None:
    """Finds what would fail later, before any work.

    Raises:
        ConfigError: a file or split is missing, a description is impossible.
    """
    _check_start(run.model.backbone, run.model.tokenizer)
    drawn = isinstance(run.model.backbone, dict)
    rule = "null: the checkpoint has its own"
    require(drawn or run.model.tokenizer is None, "model.tokenizer", rule, run.model.tokenizer)
    projects = run.model.embedding_dim is not None or not run.model.projection_bias
    require(projects, "model.projection_bias", "false without `embedding_dim`", True)
    if run.model.sharing is not None:
        Sharing.of(run.model.sharing)
    for name, stage in run.stages.items():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ConfigError(
                "stages: a name holds letters, digits, '_', '.' and '-', and begins with none of"
                f" the last two. Received: {name!r}"
            )
        if stage.sharing is not None:
            with errors_of_stage(name):
                Sharing.of(stage.sharing)
        for place, source in enumerate(stage.sources):
            where = f"stages.{name}.mixture[{place}]" if stage.mixture else f"stages.{name}"
            _check_source(source, where)
        clusters = stage.topic_clusters
        if clusters is not None and not Path(clusters).is_file():
            raise ConfigError(f"stages.{name}.topic_clusters: {clusters} does not exist.")
        for part, other in stage.other_models.items():
            where = f"stages.{name}.{part}.model"
            if part != "margins":
                _check_other(other.model or run.model.backbone, where)
            elif other.model is not None:
                _check_matcher(other.model, where)
        if stage.validation is not None:
            for inside, measured in stage.validation.measured().items():
                dataset = DatasetDirectory(measured.dataset)
                dataset.qrels_file(measured.split)
                with naming(f"stages.{name}.validation{inside}"):
                    if needs_answers(measured.measures):
                        rng = np.random.Generator(np.random.PCG64(run.seed))
                        sample = sample_queries(dataset, measured.split, measured.max_queries, rng)
                        AnswerTexts.of(dataset, [query.query_id for query in sample])


def expand_match_run(run: MatchRun) -> MatchRun:
    """Returns a matcher's run with `${NAME}` in its paths replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """
    values: dict[str, Any] = {
        "model": dataclasses.replace(
            run.model,
            backbone=expand_path(run.model.backbone, "model.backbone"),
            tokenizer=expand_path(run.model.tokenizer, "model.tokenizer"),
        )
    }
    for name in ("data", "validation", "test"):
        part = getattr(run, name)
        if part is not None:
            paths = {
                field: expand_path(getattr(part, field), f"{name}.{field}")
                for field in ("data", "dataset")
            }
            values[name] = dataclasses.replace(part, **paths)
    if run.teaching is not None:
        models = tuple(expand_path(path, "teaching.models") for path in run.teaching.models)
        values["teaching"] = dataclasses.replace(run.teaching, models=models)
    return dataclasses.replace(run, **values)


def check_match_run(run: MatchRun) -> None:
    """Finds what a matcher's run names and is not there.

    Raises:
        ConfigError: a checkpoint, a tokenizer or pairs are missing.
    """
    _check_start(run.model.backbone, run.model.tokenizer)
    for model in () if run.teaching is None else run.teaching.models:
        with naming("teaching.models"):
            check_checkpoint(model)
    for name in ("data", "validation", "test"):
        part = getattr(run, name)
        if part is not None and not Path(part.data).exists():
            raise ConfigError(
                f"{part.data}: a folder of labelled pairs or a pair file must stand here."
            )


@contextlib.contextmanager
def errors_of_stage(name: str) -> Iterator[None]:
    """Puts the stage's name before errors about what its description asks for."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"stages.{name}: {error}") from error


def expand_path(value: Any, where: str) -> Any:
    """Returns a path with `${NAME}` replaced; what is no text stays as it is.

    Raises:
        ConfigError: a variable is not set.
    """
    if not isinstance(value, str):
        return value
    expanded = os.path.expanduser(os.path.expandvars(value))
    missing = re.search(r"\$\{?(\w+)", expanded)
    if missing:
        raise ConfigError(
            f"{where}: the environment variable {missing.group(1)} is not set. Received: {value!r}"
        )
    return expanded


def _check_start(backbone: str | dict[str, Any], tokenizer: str | None) -> None:
    if isinstance(backbone, dict):
        backbone_from_mapping(backbone, "model.backbone")
    else:
        try:
            check_checkpoint(backbone, trains=True)
        except ConfigError as error:
            raise ConfigError(f"model.backbone: {error}") from error
    if tokenizer is not None and not Path(tokenizer).exists():
        raise ConfigError(f"model.tokenizer: {tokenizer} does not exist.")


def _check_other(model: Any, where: str) -> None:
    rule = "a model directory or a checkpoint, where the run starts from random weights"
    require(isinstance(model, str), where, rule, None)  # a mapping is the start's own sizes
    with naming(where):
        check_checkpoint(model)


def _check_matcher(path: str, where: str) -> None:
    file = Path(path) / "config.json"
    said = read_json_file(file).get("config", {}) if file.is_file() else {}
    kind = said.get("kind")
    rule = "the model directory of a matcher of late_interaction or multi_vector"
    require(kind in SCORE_ALONE, where, rule, path if kind is None else f"{path}: {kind}")


def _expand_source(source: Source, where: str) -> Source:
    paths = {
        name: expand_path(getattr(source, name), f"{where}.{name}")
        for name in ("data", "dataset", "pages", "topic_clusters")
        if hasattr(source, name)
    }
    return dataclasses.replace(source, **paths)


def _check_source(source: SourceConfig, where: str) -> None:
    name = "data" if source.pages is None else "pages"
    path = Path(str(getattr(source, name)))
    if not path.exists():
        raise ConfigError(f"{where}.{name}: {path} does not exist.")
    if name == "data" and path.is_dir():
        DatasetDirectory(path).qrels_file(source.split)
    if source.dataset is not None:
        DatasetDirectory(source.dataset)
    if source.pages is not None:
        try:
            check_tasks(source.tasks, source.titles)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
