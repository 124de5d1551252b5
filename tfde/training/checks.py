"""What the data that a run names must satisfy before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfde.config.training import SourceConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.ids import id_of_text
from tfde.data.pairs.batches import PairBatches
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.mixture import PairMixture, shares_of_batch
from tfde.data.pairs.query_clusters import read_clusters
from tfde.data.pairs.read_pairs import read_pairs
from tfde.data.pairs.streamed import StreamedPairs
from tfde.data.pairs.table import PairTable, pool_known_positives
from tfde.errors import ConfigError, DataError
from tfde.pretraining.build_store import page_store
from tfde.pretraining.page_store import PageStore
from tfde.pretraining.pair_stream import PairStream
from tfde.training.early_checks import errors_of_stage, sources_of
from tfde.training.optimizers import build_optimizer


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


def _check_validation(dataset: str, split: str) -> None:
    directory = DatasetDirectory(dataset)
    directory.validate([split])
    if not directory.qrels(split):
        rule = "must judge at least one query, for the validation."
        raise DataError(directory.qrels_file(split), None, rule)


def _store_directory(pages: str, stores: Path) -> Path:
    return stores / id_of_text(str(Path(pages).resolve()))
