"""The data that stages train on: read here, and only once where stages follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfde.config.training import SourceConfig, StageConfig, TrainRun
from tfde.data.ids import id_of_text
from tfde.data.pairs.batches import PairBatches
from tfde.data.pairs.dataset import PairDataset, tell_unused_negatives
from tfde.data.pairs.mixture import PairMixture, PairTurns, shares_of_batch
from tfde.data.pairs.prompted import PromptedQueries
from tfde.data.pairs.query_clusters import read_clusters
from tfde.data.pairs.read_pairs import read_pairs
from tfde.data.pairs.streamed import StreamedPairs
from tfde.data.pairs.table import PairTable, pool_known_positives
from tfde.errors import ConfigError
from tfde.pretraining.build_store import page_store
from tfde.pretraining.page_store import PageStore
from tfde.pretraining.pair_stream import PairStream


class StageData:
    """Reads the pairs of a run's stages.

    The tables of the stage that was read last are kept: what is checked is trained on, and mined
    from, without being read again. Those of two stages are in memory only while one is read.

    Args:
        seed: Decides over order and draws.
        stores: Directory of the pages that are cut into sentences.
    """

    def __init__(self, *, seed: int, stores: Path) -> None:
        self.seed = seed
        self.stores = stores
        self._tables: dict[Any, PairTable] = {}

    def build_page_stores(self, run: TrainRun) -> None:
        """Cuts the pages of all stages into sentences, where that is not done yet."""
        for stage in run.stages.values():
            for source in stage.sources:
                if source.pages is not None:
                    page_store(source.pages, self._store_directory(source.pages))

    def table(self, source: SourceConfig, *, mined: Path | None = None) -> PairTable:
        """Returns the pairs of a source that is no file of pages.

        Args:
            source: The source.
            mined: The pair file of a refresh, whose negatives take the place of the source's own.

        Raises:
            ConfigError, DataError: the pairs cannot be read.
        """
        key = _key(source)
        if key not in self._tables:
            self._tables[key] = read_pairs(
                str(source.data),
                split=source.split,
                dataset=source.dataset,
                limit=source.limit,
            )
        table = self._tables[key]
        if mined is None:
            return table
        found = read_pairs(mined, dataset=source.dataset or str(source.data))
        return table.with_negatives(
            {(pair.query.query_id, pair.positive.doc_id): pair.negatives for pair in found}
        )

    def batches(self, stage: StageConfig, *, mined: Path | None = None) -> PairBatches:
        """Returns the batches of a stage.

        Args:
            stage: The stage; the stores of its pages must be built.
            mined: As `table`.

        Raises:
            ConfigError, DataError: the pairs cannot be read or batched so.
        """
        sources = stage.sources
        tables = self._read(sources, mined)
        weights = [source.weight for source in sources]
        if stage.source_temperature is not None:
            power = 1 / stage.source_temperature
            weights = [weight * len(tables[i]) ** power for i, weight in enumerate(weights)]
        if stage.homogeneous:
            rows = [stage.batch_size] * len(sources)
        else:
            rows = shares_of_batch(stage.batch_size, weights)
        parts: list[PairBatches] = []
        for place, (source, size) in enumerate(zip(sources, rows, strict=True)):
            # Apart: twice the same data is not to give twice the same pairs.
            seed = self.seed + 1_000_003 * place
            if source.pages is not None:
                part = self._of_pages(source, stage, size, seed)
            else:
                part = _of_pairs(tables[place], source, stage, size, seed, f"mixture[{place}]")
            prompt = source.query_prompt
            parts.append(PromptedQueries(part, prompt) if prompt else part)
        wanted = stage.negatives_per_query
        found = max(part.negatives_per_query for part in parts)
        if wanted and not found and stage.refresh is None:
            raise ConfigError(
                "`negatives_per_query` must be 0 where no source has negatives; tfde mine-negatives"
                f" finds some. Received: {wanted}"
            )
        if len(parts) == 1:
            return parts[0]
        return (
            PairTurns(parts, weights, seed=self.seed) if stage.homogeneous else PairMixture(parts)
        )

    def _of_pages(
        self, source: SourceConfig, stage: StageConfig, size: int, seed: int
    ) -> PairBatches:
        store = PageStore(self._store_directory(str(source.pages)))
        stream = PairStream(store, source.tasks, seed=seed, titles=source.titles)
        return StreamedPairs(stream, batch_size=size, count_documents=stage.sampling_correction)

    def _read(self, sources: Sequence[SourceConfig], mined: Path | None) -> dict[int, PairTable]:
        """Returns the pairs of the sources that are no pages, by their place among all."""
        wanted = {_key(source) for source in sources}
        self._tables = {key: table for key, table in self._tables.items() if key in wanted}
        tables = {
            place: self.table(source, mined=mined)
            for place, source in enumerate(sources)
            if source.pages is None
        }
        if len(tables) > 1:
            pooled = pool_known_positives(list(tables.values()))
            tables = dict(zip(tables, pooled, strict=True))
        return tables

    def _store_directory(self, pages: str) -> Path:
        return self.stores / id_of_text(str(Path(pages).resolve()))


def _of_pairs(
    table: PairTable, source: SourceConfig, stage: StageConfig, size: int, seed: int, where: str
) -> PairBatches:
    if stage.mixture and size > len(table):
        raise ConfigError(
            f"{where} must have as many pairs as rows in a batch, {size} of"
            f" {stage.batch_size}. Received: {source.data} with {len(table)}"
        )
    negatives = stage.negatives_per_query
    if stage.mixture or stage.refresh is not None:
        # Not all sources need have them, and a stage may wait for those that it mines.
        negatives = min(negatives, table.max_negatives)
    else:
        tell_unused_negatives(table, negatives, str(source.data))
    topics = stage.topic_clusters
    return PairDataset(
        table,
        batch_size=size,
        seed=seed,
        negatives_per_query=negatives,
        clusters=None if topics is None else read_clusters(topics),
        margin_bins=0 if stage.margins is None else stage.margins.bins,
    )


def stage_steps(stage: StageConfig, batches: PairBatches) -> int:
    """Returns how many steps a stage trains."""
    return stage.steps or (stage.epochs or 1) * batches.steps_per_epoch


def _key(source: SourceConfig) -> tuple[Any, ...]:
    return source.data, source.split, source.dataset, source.limit
