"""A study: every cell of a grid trained and measured once, whatever kills it on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tfde.config.study import EvaluationConfig, StudyConfig, VocabularyConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pages import read_pages
from tfde.errors import ConfigError, TrainingError
from tfde.evaluation.measures import needs_answers
from tfde.progress import progress_bar
from tfde.storage.atomic import atomic_file, directory_lock, make_directories
from tfde.storage.files import read_json
from tfde.studies.cells import Cell, expand_cells, select_cells
from tfde.studies.parallel_jobs import call_in_child, core_shares, side_by_side
from tfde.studies.results import (
    RESULTS_FILE,
    STUDY_FILE,
    append_result,
    read_results,
    write_by_query,
)
from tfde.studies.run_cell import DEPTH, ChainedStage, digest, do_cell, is_trained, stage_chain
from tfde.studies.study_checks import check_cells, expand_evaluation, needs_vocabulary
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.training.checks import check_stages
from tfde.training.early_checks import expand_path, expand_run
from tfde.training.run_record import answers_checksum, checksum, data_paths
from tfde.training.stage_data import StageData

logger = logging.getLogger("tfde")

_TRAINED = "trained"
_VOCABULARY = "vocabulary-"
_PACKAGES = ("tfde", "tensorflow", "keras")


class _Plan(NamedTuple):
    """A cell, the trainings it needs, and what its result is filed under."""

    cell: Cell
    chain: list[ChainedStage]
    evaluation: EvaluationConfig
    key: str

    @property
    def place(self) -> dict[str, Any]:
        return {"axes": self.cell.axes, "seed": self.cell.seed, "hash": self.key}


def run_study(
    study: StudyConfig,
    output: str | Path,
    *,
    only: Mapping[str, str] | None = None,
    jobs: int = 1,
    show_progress: bool = False,
) -> None:
    """Does the cells of a study that are not done yet.

    `output` holds `study.json` (axes, and the cells with their hashes), `results.jsonl` (a line a
    cell), the vocabulary, and `trained/`: the stages that cells still need. A cell is done when
    there is a result with its hash, which changes with anything that decides over the result:
    model, seed, stages, evaluation, and the content of the data.

    Args:
        study: The study.
        output: Directory of the study; that of an interrupted one is continued.
        only: Values of axes, or of `seed`; other cells are left for later.
        jobs: How many cells are at work at the same time, each on its share of the cores. Cells
            that need a training which another one does wait for it.
        show_progress: Whether a progress bar over cells goes to stderr.

    Raises:
        ConfigError: something the study names is missing or impossible (found before any work);
            `output` holds something else, or another process works in it; there are fewer cores
            than `jobs`.
        TrainingError: the work of a cell failed; all before it is kept.
    """
    output = Path(output)
    core_shares(jobs)
    cells = expand_cells(study)
    chosen = cells if not only else select_cells(cells, only)
    _refuse_foreign(output, cells)
    with contextlib.ExitStack() as stack:
        locked, begun = directory_lock(output, "working on its study"), output.exists()
        if begun:  # tells of another process before the checks, which take a while
            stack.enter_context(locked)
        check_cells(cells, study)
        if not begun:
            make_directories(output)
            stack.enter_context(locked)
        vocabulary = None if study.vocabulary is None else _vocabulary(study.vocabulary, output)
        known = functools.cache(checksum)  # cells read the same files
        plans = [_plan(cell, output / _TRAINED, vocabulary, known) for cell in cells]
        record = {
            "axes": {axis: list(values) for axis, values in study.axes.items()},
            "cells": [plan.place for plan in plans],
            "data": _data(plans, known),
        }
        with atomic_file(output / STUDY_FILE) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        wanted = [plan for plan in plans if any(plan.cell is cell for cell in chosen)]
        with progress_bar(total=len(wanted), unit="cell", disable=not show_progress) as bar:
            _work(wanted, plans, output, jobs=jobs, keep_models=study.keep_models, bar=bar)


def _data(plans: Sequence[_Plan], checksum_of: Callable[[Path], Any]) -> dict[str, Any]:
    """Returns path, as the study names it -> checksums: of all that cells read or search."""
    found: dict[str, Any] = {}
    for plan in plans:
        named, paths = [], []
        for stage in plan.chain:
            named += data_paths(stage.run)
            paths += data_paths(expand_run(stage.run))
        for of, evaluation in ((named, plan.cell.evaluation), (paths, plan.evaluation)):
            more = evaluation.more_candidates
            of += [evaluation.dataset, *([] if more is None else [more])]
        found |= {name: checksum_of(Path(path)) for name, path in zip(named, paths, strict=True)}
    return found


def _commit() -> str | None:
    """Returns the commit of the repository around the working directory, if there is one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _refuse_foreign(output: Path, cells: Sequence[Cell]) -> None:
    """Keeps out of directories that are not this study's: its old trainings are removed there."""
    if not output.exists():
        return
    path = output / STUDY_FILE
    if path.exists():
        older = read_json(path)["cells"]
        places = [cell.axes for cell in cells]
        if not any(cell["axes"] in places for cell in older):
            raise ConfigError(
                f"{output} holds another study (of {', '.join(older[0]['axes'])}, no cell in"
                " common); choose another output."
            )
        return
    names = {path.name for path in output.iterdir()}
    if any(not name.startswith((".", _VOCABULARY)) for name in names):  # from before the first plan
        raise ConfigError(f"{output} is not empty and holds no study; choose another output.")


def _work(
    wanted: Sequence[_Plan],
    plans: Sequence[_Plan],
    output: Path,
    *,
    jobs: int,
    keep_models: bool,
    bar: Any,
) -> None:
    path = output / RESULTS_FILE
    results = read_results(path)
    waiting = [plan for plan in wanted if not _is_done(plan, results)]
    _check_pairs(waiting)

    gone = sum(_is_done(plan, results) and not _is_kept(plan, results, output) for plan in wanted)
    if keep_models and gone:
        logger.warning(
            "%d cells are done and their models were not kept; to train them again, remove their"
            " lines from %s",
            gone,
            path,
        )

    def forget_models() -> None:
        if not keep_models:
            waiting = [plan for plan in plans if not _is_done(plan, results)]
            _forget_models(output / _TRAINED, waiting, results)

    def work(plan: _Plan, cores: Sequence[int]) -> dict[str, Any]:
        number = wanted.index(plan) + 1
        logger.info("cell %d of %d: %s", number, len(wanted), plan.cell.name)
        # BM25 in several places of the grid is one result.
        equal = next((result for result in results if result["hash"] == plan.key), None)
        found = _do(plan, output, cores) if equal is None else equal
        return {**found, **plan.place, "model": found["model"] if keep_models else None}

    forget_models()
    bar.update(len(wanted) - len(waiting))
    for plan, found in side_by_side(waiting, work, jobs=jobs, must_wait=_must_wait):
        append_result(path, found)
        results.append(found)
        forget_models()
        logger.info(
            "  %s:  %s  (%s)",
            plan.cell.name,
            "  ".join(f"{name} {value:.4f}" for name, value in found["measures"].items()),
            ", ".join(f"{name} {value:.0f} s" for name, value in found["seconds"].items()),
        )
        bar.update()


def _must_wait(plan: _Plan, other: _Plan) -> bool:
    """Returns whether another cell is at work on what this one needs too."""
    needed = {stage.path for stage in plan.chain if not is_trained(stage)}
    return plan.key == other.key or any(stage.path in needed for stage in other.chain)


def _do(plan: _Plan, output: Path, cores: Sequence[int]) -> dict[str, Any]:
    commit = _commit()  # the process of the cell reads the code now, not when it has ended
    try:
        done: dict[str, Any] = call_in_child(do_cell, plan.chain, plan.evaluation, cores=cores)
    except TrainingError as error:
        raise TrainingError(f"cell {plan.cell.name}: {error}") from None
    write_by_query(output, plan.key, done)
    done = {name: value for name, value in done.items() if name not in ("query_ids", "by_query")}
    versions = {name: version(name) for name in _PACKAGES}
    return {**plan.place, **done, "versions": versions, "commit": commit}


def _is_done(plan: _Plan, results: Sequence[Mapping[str, Any]]) -> bool:
    return any(plan.place.items() <= result.items() for result in results)


def _is_kept(plan: _Plan, results: Sequence[Mapping[str, Any]], output: Path) -> bool:
    """Returns whether the model of a cell that is done is there, if it has one."""
    return not plan.chain or any(
        result["hash"] == plan.key and result.get("model") and (output / result["model"]).exists()
        for result in results
    )


def _forget_models(
    trained: Path, waiting: Sequence[_Plan], results: Sequence[Mapping[str, Any]]
) -> None:
    """Removes the trainings that no cell needs any more, and whose models were not to be kept."""
    needed = {stage.path.name for plan in waiting for stage in plan.chain}
    needed |= {Path(result["model"]).parts[1] for result in results if result.get("model")}
    for path in trained.iterdir() if trained.exists() else ():
        if path.name not in needed:
            shutil.rmtree(path)


def _plan(
    cell: Cell, trained: Path, vocabulary: Path | None, checksum_of: Callable[[Path], Any]
) -> _Plan:
    chain: list[ChainedStage] = []
    if cell.run is not None:
        run = cell.run
        if vocabulary is not None and needs_vocabulary(run.model):
            model = dataclasses.replace(run.model, tokenizer=str(vocabulary))
            run = dataclasses.replace(run, model=model)
        chain = stage_chain(run, trained, checksum_of=checksum_of)
    evaluation = expand_evaluation(cell.evaluation)
    paths = [evaluation.dataset, evaluation.more_candidates]
    data = [checksum_of(Path(path)) for path in paths if path is not None]
    if needs_answers(evaluation.measures):
        data += answers_checksum(evaluation.dataset, checksum_of=checksum_of).values()
    key = digest([chain[-1].path.name if chain else None, cell.evaluation, data, DEPTH])
    return _Plan(cell, chain, evaluation, key)


def _check_pairs(plans: Sequence[_Plan]) -> None:
    """Reads the pairs of every stage once, and finds what is impossible with them."""
    known = set()
    for plan in plans:
        for stage in plan.chain:
            key = digest(stage.run.stages)
            if key not in known:
                known.add(key)
                run = expand_run(stage.run)
                try:
                    data = StageData(seed=run.seed, stores=stage.path)
                    check_stages(run, data, with_pages=False)
                except ConfigError as error:
                    raise ConfigError(f"cell {plan.cell.name}: {error}") from error


def _vocabulary(config: VocabularyConfig, output: Path) -> Path:
    """Returns the vocabulary of all cells, which is trained if it is not there yet."""
    texts = Path(expand_path(config.texts, "vocabulary.texts"))
    key = digest([config.size, checksum(texts)])
    path = output / f"{_VOCABULARY}{key}.model"
    if not path.exists():
        logger.info("training a vocabulary of %d pieces", config.size)
        train_sentencepiece(_texts(texts), path, vocabulary_size=config.size)
    return path


def _texts(path: Path) -> Iterator[str]:
    if path.is_dir():
        for document in DatasetDirectory(path).documents():
            yield document.title
            yield document.text
        return
    for page in read_pages(path):
        yield page.title
        for section in page.sections:
            yield from section.passages
