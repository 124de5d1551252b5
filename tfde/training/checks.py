"""What a run's description must satisfy before any work starts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfde.config import Sharing, backbone_from_mapping
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.ids import id_of_text
from tfde.data.pair_batches import PairBatches
from tfde.data.pair_mixture import PairMixture, shares_of_batch
from tfde.data.pair_table import PairTable, pool_known_positives
from tfde.data.pairs import PairDataset
from tfde.data.query_clusters import read_clusters
from tfde.data.read_pairs import read_pairs
from tfde.data.streamed_pairs import StreamedPairs
from tfde.errors import ConfigError, DataError
from tfde.evaluation.measures import parse_measures
from tfde.pretraining.build_store import page_store
from tfde.pretraining.page_store import PageStore
from tfde.pretraining.pair_stream import PairStream, check_tasks
from tfde.recipe import SourceConfig, StageConfig, TrainRun
from tfde.training.optimizers import build_optimizer

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
            validation = dataclasses.replace(
                validation, dataset=expand_path(validation.dataset, f"{where}.validation.dataset")
            )
        stages[name] = dataclasses.replace(
            _expand_source(stage, where),
            mixture=tuple(
                _expand_source(source, f"{where}.mixture[{place}]")
                for place, source in enumerate(stage.mixture)
            ),
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
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ConfigError(
                "stages: a name holds letters, digits, '_', '.' and '-', and begins with none of"
                f" the last two. Received: {name!r}"
            )
        if stage.sharing is not None:
            with errors_of_stage(name):
                Sharing.of(stage.sharing)
        for place, source in enumerate(sources_of(stage)):
            where = f"stages.{name}.mixture[{place}]" if stage.mixture else f"stages.{name}"
            _check_source(source, where)
        clusters = stage.topic_clusters
        if clusters is not None and not Path(clusters).is_file():
            raise ConfigError(f"stages.{name}.topic_clusters: {clusters} does not exist.")
        if stage.validation is not None:
            DatasetDirectory(stage.validation.dataset).qrels_file(stage.validation.split)
            parse_measures(stage.validation.measures)


def check_stages(run: TrainRun, stores: Path, *, with_pages: bool) -> None:
    """Reads all pairs and validation sets, and finds what is impossible with them.

    It takes seconds; a fault in the last stage that is found after the first takes hours.

    Args:
        run: What is to be trained.
        stores: As `stage_pairs`.
        with_pages: Whether to look at the stages with pages, whose stores must be built by then,
            or at the others.

    Raises:
        ConfigError, DataError: pairs cannot be read or batched so, a schedule is impossible, or a
            validation set breaks a rule or has no queries.
    """
    validated: set[tuple[str, str]] = set()
    for name, stage in run.stages.items():
        validation = None if with_pages else stage.validation
        if validation is not None and (validation.dataset, validation.split) not in validated:
            _check_validation(validation.dataset, validation.split)
            validated.add((validation.dataset, validation.split))
        if any(source.pages is not None for source in sources_of(stage)) == with_pages:
            with errors_of_stage(name):
                batches = stage_pairs(stage, run.seed, stores)
                build_optimizer(stage.optimizer, steps=stage_steps(stage, batches))


@contextlib.contextmanager
def errors_of_stage(name: str) -> Iterator[None]:
    """Puts the stage's name before errors about what its description asks for."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"stages.{name}: {error}") from error


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


def sources_of(stage: StageConfig) -> tuple[SourceConfig, ...]:
    """Returns the sources of a stage's pairs; `data` is a single one."""
    if stage.mixture:
        return stage.mixture
    return (SourceConfig(stage.data, stage.split, stage.dataset, stage.limit),)


def build_page_stores(run: TrainRun, stores: Path) -> None:
    """Cuts the pages of all stages into sentences, where that is not done yet."""
    for stage in run.stages.values():
        for source in sources_of(stage):
            if source.pages is not None:
                page_store(source.pages, _store_directory(source.pages, stores))


def stage_pairs(
    stage: StageConfig, seed: int, stores: Path, *, mined: Path | None = None
) -> PairBatches:
    """Returns the batches of a stage.

    Args:
        stage: The stage.
        seed: Decides over order and draws.
        stores: The directory in which `build_page_stores` built.
        mined: The pair file of a refresh, whose negatives take the place of the stage's own.

    Raises:
        ConfigError, DataError: the pairs cannot be read or batched so.
    """
    sources = sources_of(stage)
    rows = shares_of_batch(stage.batch_size, [source.weight for source in sources])
    tables = _read_tables(sources, mined)
    parts: list[PairBatches] = []
    for place, (source, size) in enumerate(zip(sources, rows, strict=True)):
        # Apart: twice the same data is not to give twice the same pairs.
        own_seed = seed + 1_000_003 * place
        if source.pages is not None:
            store = PageStore(_store_directory(source.pages, stores))
            stream = PairStream(store, source.tasks, seed=own_seed, titles=source.titles)
            count = stage.sampling_correction
            parts.append(StreamedPairs(stream, batch_size=size, count_documents=count))
            continue
        table = tables[place]
        if stage.mixture and size > len(table):
            raise ConfigError(
                f"mixture[{place}] must have as many pairs as rows in a batch, {size} of"
                f" {stage.batch_size}. Received: {source.data} with {len(table)}"
            )
        negatives = stage.negatives_per_query
        if stage.mixture or stage.refresh is not None:
            # Not all sources need have them, and a stage may wait for those that it mines.
            negatives = min(negatives, table.max_negatives)
        topics = stage.topic_clusters
        parts.append(
            PairDataset(
                table,
                batch_size=size,
                seed=own_seed,
                negatives_per_query=negatives,
                clusters=None if topics is None else read_clusters(topics),
            )
        )
    wanted = stage.negatives_per_query
    found = max(part.negatives_per_query for part in parts)
    if wanted and not found and stage.refresh is None:
        raise ConfigError(
            "`negatives_per_query` must be 0 where no source has negatives; tfde mine-negatives"
            f" finds some. Received: {wanted}"
        )
    return parts[0] if len(parts) == 1 else PairMixture(parts)


def _read_tables(sources: Sequence[SourceConfig], mined: Path | None) -> dict[int, PairTable]:
    """Returns the pairs of the sources that are no pages, by their place among all."""
    tables = {
        place: read_source(source, mined)
        for place, source in enumerate(sources)
        if source.pages is None
    }
    if len(tables) > 1:
        pooled = pool_known_positives(list(tables.values()))
        tables = dict(zip(tables, pooled, strict=True))
    return tables


def read_source(source: SourceConfig, mined: Path | None = None) -> PairTable:
    """Returns the pairs of a source that is no file of pages.

    Args:
        source: The source.
        mined: As `stage_pairs`.

    Raises:
        ConfigError, DataError: the pairs cannot be read.
    """
    data = str(source.data)
    table = read_pairs(data, split=source.split, dataset=source.dataset, limit=source.limit)
    if mined is None:
        return table
    found = read_pairs(mined, dataset=source.dataset or data)
    return table.with_negatives(
        {(pair.query.query_id, pair.positive.doc_id): pair.negatives for pair in found}
    )


def stage_steps(stage: StageConfig, batches: PairBatches) -> int:
    """Returns how many steps a stage trains."""
    return stage.steps or (stage.epochs or 1) * batches.steps_per_epoch


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


def _expand_source(source: Source, where: str) -> Source:
    paths = {
        name: expand_path(getattr(source, name), f"{where}.{name}")
        for name in ("data", "dataset", "pages", "topic_clusters")
        if hasattr(source, name)
    }
    return dataclasses.replace(source, **paths)


def _check_validation(dataset: str, split: str) -> None:
    directory = DatasetDirectory(dataset)
    directory.validate([split])
    if not directory.qrels(split):
        rule = "must judge at least one query, for the validation."
        raise DataError(directory.qrels_file(split), None, rule)


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


def _store_directory(pages: str, stores: Path) -> Path:
    return stores / id_of_text(str(Path(pages).resolve()))
