"""The work of one cell: train the stages that nobody has trained yet, then measure the model."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.config.study import EvaluationConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pages import read_pages
from tfde.data.query_sample import sample_queries
from tfde.errors import OtherRunError
from tfde.evaluation.answer_matching import AnswerTexts
from tfde.evaluation.measures import depth, mean_values, needs_answers, per_query
from tfde.pretraining.page_store import split_page
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.retrieve import retrieve_from_corpus
from tfde.storage.atomic import atomic_file
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import METADATA_FILE
from tfde.training.callbacks import BEST_MODEL
from tfde.training.early_checks import expand_run
from tfde.training.run import train
from tfde.training.run_record import (
    CHECKPOINT_FILE,
    HISTORY_FILE,
    NEGATIVES,
    PAGES,
    TOPICS,
    checkpoint_files,
    checksum,
    data_checksums,
)
from tfde.types import Document, Run

MODEL = "model"
DEPTH = 100  # of what is searched at least: RR without a cutoff sees the whole run
_DONE_FILE = "done.json"
_NOT_NEEDED = (CHECKPOINT_FILE, NEGATIVES, PAGES, TOPICS, "tensorboard")


def do_cell(chain: Sequence[ChainedStage], evaluation: EvaluationConfig) -> dict[str, Any]:
    """Trains and measures a cell.

    Args:
        chain: Its stages; none for BM25.
        evaluation: How it is measured, with its environment variables replaced.

    Returns:
        `measures`; `by_query`, measure -> values in the order of `query_ids`; `seconds` of each
        stage and of `evaluate`; `steps` of each stage; `stages`, the directory of each; numbers
        of `parameters`, `queries` and `documents`; `model`, its directory in that of the study,
        or null. The seconds of a training that was killed are those of its last process.
    """
    trained = {stage.name: train_stage(stage) for stage in chain}
    record: dict[str, Any] = {
        "seconds": {name: done["seconds"] for name, done in trained.items()},
        "steps": {name: done["steps"] for name, done in trained.items()},
        "stages": {stage.name: stage.path.name for stage in chain},
        "parameters": 0,
        "model": None,
    }
    start = time.perf_counter()
    directory = kept_model(chain[-1].path) if chain else None
    record |= measure(directory, evaluation)
    record["seconds"]["evaluate"] = round(time.perf_counter() - start, 1)
    if directory is not None:
        metadata = json.loads((directory / METADATA_FILE).read_text("utf-8"))
        record["parameters"] = metadata["parameter_count"]
        record["model"] = str(directory.relative_to(directory.parents[2]))
    return record


def kept_model(path: Path) -> Path:
    """Returns the model of a trained stage: the one that its validation has kept, or the last."""
    best = path / BEST_MODEL
    return best if best.exists() else path / MODEL


def is_trained(stage: ChainedStage) -> bool:
    """Returns whether a stage is trained to its end."""
    return (stage.path / _DONE_FILE).exists()


def train_stage(stage: ChainedStage) -> dict[str, Any]:
    """Trains a stage, or goes on where a killed process stopped; returns its seconds and steps."""
    path = stage.path / _DONE_FILE
    if is_trained(stage):
        done: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return done
    start = time.perf_counter()
    try:
        train(stage.run, stage.path, verbose=0)
    except OtherRunError:
        # The directory's name vouches for content: only paths are written otherwise, as in a
        # study that was moved. What an interrupted training had done is done anew.
        shutil.rmtree(stage.path)
        train(stage.run, stage.path, verbose=0)
    seconds = round(time.perf_counter() - start, 1)
    last = (stage.path / HISTORY_FILE).read_text("utf-8").splitlines()[-1]
    done = {"seconds": seconds, "steps": json.loads(last)["step"]}
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(done) + "\n", "utf-8")
    for name in _NOT_NEEDED:
        left = stage.path / name
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    return done


def measure(model: Path | None, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Returns the measures of a model directory, or of BM25, and how much was searched."""
    dataset = DatasetDirectory(evaluation.dataset)
    rng = np.random.Generator(np.random.PCG64(evaluation.sample_seed))
    queries = sample_queries(dataset, evaluation.split, evaluation.max_queries, rng)
    k = max(depth(evaluation.measures), DEPTH)
    counts = {"queries": len(queries), "documents": 0}

    def documents() -> Iterator[Document]:
        for document in candidates(dataset, evaluation):
            counts["documents"] += 1
            yield document

    run: Run
    if model is None:
        run = Bm25Index.build(documents()).retrieve(queries, k)
    else:
        encoder = DualEncoder.from_preset(model)
        run = retrieve_from_corpus(
            encoder, documents(), queries, k, batch_size=evaluation.batch_size
        )
    qrels = dataset.qrels(evaluation.split)
    judged = {query.query_id: qrels[query.query_id] for query in queries}
    answers = None
    if needs_answers(evaluation.measures):
        answers = AnswerTexts.of(dataset, judged, lambda: candidates(dataset, evaluation))
    rows = per_query(run, judged, evaluation.measures, answers=answers)
    by_query = {name: [row[name] for row in rows.values()] for name in evaluation.measures}
    measures = {"measures": mean_values(rows), "query_ids": list(rows), "by_query": by_query}
    return {**measures, **counts}


def candidates(dataset: DatasetDirectory, evaluation: EvaluationConfig) -> Iterator[Document]:
    """Yields the corpus, then the sentences of the pages that are candidates too."""
    yield from dataset.documents()
    if evaluation.more_candidates is None:
        return
    for page in read_pages(evaluation.more_candidates):
        number = itertools.count()
        for passage in split_page(page).passages:
            for start, stop in passage.sentences:
                doc_id = f"page:{page.page_id}:{next(number)}"
                yield Document(doc_id, page.title, passage.text[start:stop])


class ChainedStage(NamedTuple):
    """One stage of a run: its name, the directory it is trained into, and the run that does it."""

    name: str
    path: Path
    run: TrainRun


def stage_chain(
    run: TrainRun, trained: Path, *, checksum_of: Callable[[Path], Any] = checksum
) -> list[ChainedStage]:
    """Returns the stages of a run as trainings of their own.

    Directories are named after all that decides over the weights in them: model, seed, the stages
    so far, and the content of what they read: data, vocabulary, and the files of a checkpoint that
    lies on this machine. Runs with equal first stages have equal names there.

    Args:
        run: The run.
        trained: The directory of all trainings.
        checksum_of: `checksum`, or one that remembers what it read for the run before.

    Raises:
        ConfigError: an environment variable is not set.
    """
    run = dataclasses.replace(run, stages=dict(_with_starts(run)))
    chain: list[ChainedStage] = []
    for count, (name, stage) in enumerate(run.stages.items(), start=1):
        first = dataclasses.replace(run, stages=dict(list(run.stages.items())[:count]))
        model = ModelConfig(str(chain[-1].path / "model")) if chain else run.model
        alone = dataclasses.replace(run, model=model, stages={name: stage})
        chain.append(ChainedStage(name, trained / _key(first, checksum_of), alone))
    return chain


def _with_starts(run: TrainRun) -> Iterator[tuple[str, StageConfig]]:
    """Yields the stages; those after the first name the start, which is not theirs any more."""
    for place, (name, stage) in enumerate(run.stages.items()):
        start = run.model.backbone
        for field in ("guide", "anchor") if place and isinstance(start, str) else ():
            other = getattr(stage, field)
            if other is not None and other.model is None:
                stage = dataclasses.replace(
                    stage, **{field: dataclasses.replace(other, model=start)}
                )
        yield name, stage


def digest(description: Any) -> str:
    """Returns 16 hex digits that change with a description: JSON's values and dataclasses.

    Fields that have their default do not count, so that one added later changes nothing.
    """
    content = json.dumps(description, default=_fields)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _key(run: TrainRun, checksum_of: Callable[[Path], Any]) -> str:
    """Names paths as they were written, without the machine's folders, beside what they hold."""
    expanded = expand_run(run)
    content = list(data_checksums(expanded, checksum_of=checksum_of).values())
    backbone, tokenizer = expanded.model.backbone, expanded.model.tokenizer
    if isinstance(backbone, str):
        # One checkpoint, or one for queries and one for documents.
        for name in [backbone] if Path(backbone).exists() else backbone.split(","):
            content += map(checksum_of, checkpoint_files(Path(name.strip())))
    for stage in expanded.stages.values():
        for other in stage.other_models.values():
            if other.model and Path(other.model).exists():
                content += map(checksum_of, checkpoint_files(Path(other.model)))
    if tokenizer is not None and (files := checkpoint_files(Path(tokenizer))):
        model = dataclasses.replace(run.model, tokenizer=" ".join(map(checksum_of, files)))
        run = dataclasses.replace(run, model=model)
    return digest([run, content])


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults."""
    found = {}
    for field in dataclasses.fields(value):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if getattr(value, field.name) != default:
            found[field.name] = getattr(value, field.name)
    return found
