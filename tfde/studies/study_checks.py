"""What can be told of a study before TensorFlow is imported: see `tfde.training.early_checks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.config.study import EvaluationConfig, StudyConfig
from tfde.config.training import ModelConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.query_sample import sample_queries
from tfde.environment import require_extra
from tfde.errors import ConfigError, DataError, require
from tfde.evaluation.answer_matching import AnswerTexts
from tfde.evaluation.measures import needs_answers
from tfde.studies.cells import Cell
from tfde.training.early_checks import check_run, expand_path, expand_run


def check_cells(cells: Sequence[Cell], study: StudyConfig) -> None:
    """Finds what would fail later, hours into the work.

    Raises:
        ConfigError: something the study names is missing or impossible.
    """
    if study.vocabulary is not None:
        texts = Path(expand_path(study.vocabulary.texts, "vocabulary.texts"))
        if not texts.exists():
            raise ConfigError(f"vocabulary.texts: {texts} does not exist.")
    for cell in cells:
        _check_cell(cell, study)


def needs_vocabulary(model: ModelConfig) -> bool:
    """Whether a model has random weights and no tokenizer of its own."""
    return isinstance(model.backbone, dict) and model.tokenizer is None


def expand_evaluation(evaluation: EvaluationConfig) -> EvaluationConfig:
    """Returns the evaluation with `${NAME}` in its paths replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """
    paths = {
        name: expand_path(getattr(evaluation, name), f"evaluate.{name}")
        for name in ("dataset", "more_candidates")
    }
    return dataclasses.replace(evaluation, **paths)


@functools.cache
def _check_answers(path: str, split: str, max_queries: int | None, seed: int) -> None:
    """Looks once for the answers to the queries that many cells may measure."""
    dataset = DatasetDirectory(path)
    rng = np.random.Generator(np.random.PCG64(seed))
    queries = sample_queries(dataset, split, max_queries, rng)
    AnswerTexts.of(dataset, [query.query_id for query in queries])


def _check_starts(run: TrainRun) -> None:
    """Refuses what a later stage compares with the start: it is trained as a run of its own."""
    for name, stage in list(run.stages.items())[1:]:
        checked = stage.validation
        fields: dict[str, Any] = {"start_shares": stage.start_shares}
        if checked is not None:
            fields["validation.measure_start"] = checked.measure_start
            fields["validation.guards"] = list(checked.guards)
        rule = "left out after the first stage: a study trains each stage by itself"
        for field, value in fields.items():
            require(not value, f"stages.{name}.{field}", rule, value)


@functools.cache
def _check_data(path: str, split: str) -> None:
    """Reads once what many cells are measured on."""
    dataset = DatasetDirectory(path)
    dataset.qrels_file(split)
    dataset.validate([split])
    require(bool(dataset.qrels(split)), "evaluate.split", "one with judged queries", split)


def _check_cell(cell: Cell, study: StudyConfig) -> None:
    try:
        evaluation = expand_evaluation(cell.evaluation)
        _check_data(evaluation.dataset, evaluation.split)
        if needs_answers(evaluation.measures):
            _check_answers(
                evaluation.dataset,
                evaluation.split,
                evaluation.max_queries,
                evaluation.sample_seed,
            )
        pages = evaluation.more_candidates
        if pages is not None and not Path(pages).is_file():
            raise ConfigError(f"evaluate.more_candidates: {pages} does not exist.")
        if cell.run is None:
            require_extra("bm25", "a cell that BM25 answers")
        else:
            check_run(expand_run(cell.run))
            _check_starts(cell.run)
            taken = "evaluate" in cell.run.stages  # by the time of the measurement
            require(not taken, "stages", "named otherwise", "evaluate")
            if study.vocabulary is None and needs_vocabulary(cell.run.model):
                raise ConfigError(
                    "`vocabulary` is needed: models with random weights and no `tokenizer` would"
                    " each have a vocabulary of their own. Received: null"
                )
    except (ConfigError, DataError) as error:
        raise ConfigError(f"cell {cell.name}: {error}") from error
