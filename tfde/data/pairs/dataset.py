"""Batches of training pairs as a tf.data input that can start at any step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.data.pairs.batches import PairBatches, look_up, string_array
from tfde.data.pairs.query_clusters import TopicOrder
from tfde.data.pairs.read_pairs import read_pairs
from tfde.data.pairs.table import PairTable
from tfde.errors import ConfigError, require
from tfde.types import CONTEXT, Pair

_LOG = logging.getLogger(__name__)


@typed
def pairs(
    path: str | Path | Iterable[Any],
    *,
    split: str = "train",
    batch_size: int,
    seed: int = 0,
    negatives_per_query: int = 0,
    shuffle: bool = True,
    dataset: str | Path | None = None,
    limit: int | None = None,
    clusters: Mapping[str, int] | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    margin_bins: int = 0,
) -> PairDataset:
    """Returns the training batches of a dataset directory, a pair file, a list or a frame.

    Args:
        path: A dataset directory or a pair file; or pairs in memory: `(query, document)` texts
            with negatives behind them or none, two columns `(queries, documents)`, mappings,
            `tfde.Pair`s, or a frame (pandas, polars, pyarrow) with columns as `tfde convert` knows
            them.
        split: The split of a dataset directory.
        batch_size: Pairs in a batch.
        seed: Decides the order and which given negatives are drawn.
        negatives_per_query: Given negatives M in each row of a batch.
        shuffle: Whether each epoch has an order of its own; else file order.
        dataset: The dataset directory whose documents a pair file names by id.
        limit: Take only the first so many pairs.
        clusters: The topic of each query, as `PairDataset`.
        columns: Kind -> name of each column of pairs in memory that has another name, or a list
            of `KIND=NAME`.
        margin_bins: As `PairDataset`: balanced margins.

    Raises:
        ConfigError: as `PairDataset` and `read_pairs`.
        DataError: as `read_pairs`.
    """
    table = read_pairs(path, split=split, dataset=dataset, limit=limit, columns=columns)
    tell_unused_negatives(table, negatives_per_query)
    return PairDataset(
        table,
        batch_size=batch_size,
        seed=seed,
        negatives_per_query=negatives_per_query,
        shuffle=shuffle,
        clusters=clusters,
        margin_bins=margin_bins,
    )


def tell_unused_negatives(table: PairTable, negatives_per_query: int, of: str = "") -> None:
    """Warns where pairs have given negatives and none is asked for.

    Args:
        table: The pairs.
        negatives_per_query: How many are asked for.
        of: What they are, for the message.
    """
    if table.max_negatives and not negatives_per_query:
        _LOG.warning(
            "%sthe pairs have up to %d given negatives, which are left out; negatives_per_query=%d"
            " takes them",
            of and f"{of}: ",
            table.max_negatives,
            table.max_negatives,
        )


class PairDataset(PairBatches):
    """Batches of pairs that are in memory; batch number s is a pure function of (seed, s).

    With `shuffle`, an epoch is a permutation drawn from (seed, epoch) and its last pairs that fill
    no batch are left out (they stand elsewhere in the next epoch), so all batches are full.
    Without, pairs come in their order and the last batch of an epoch may be smaller. A query with
    more than M given negatives gets M of them, drawn from (seed, s).

    With `margin_bins`, the range of the margins of a pair's negatives is cut into so many equal
    parts; one of those that hold any is drawn, and one negative in it, and so on without
    replacement (Hofstätter et al. 2021, TAS-B: balanced margins).

    With `clusters`, all queries of a batch are of one cluster; an epoch is drawn as `TopicOrder`
    says.

    Args:
        pairs: The pairs; texts are kept once however often they occur.
        batch_size: Pairs in a batch, B.
        seed: At least 0.
        negatives_per_query: Given negatives in each row, M.
        shuffle: Whether each epoch has an order of its own.
        clusters: The cluster of each query id, such as `read_clusters` gives; needs `shuffle`.
        margin_bins: Into how many parts margins are cut; 0 draws any negatives, margins or not.

    Raises:
        ConfigError: there are no pairs; `batch_size` is below 1 or, when shuffling, above the
            number of pairs; `seed` or `negatives_per_query` is negative; negatives are asked for
            and no pair has one; a negative has no margin, with `margin_bins`; `clusters` without
            `shuffle`, or as `TopicOrder`.
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        *,
        batch_size: int,
        seed: int = 0,
        negatives_per_query: int = 0,
        shuffle: bool = True,
        clusters: Mapping[str, int] | None = None,
        margin_bins: int = 0,
    ) -> None:
        self.margin_bins = margin_bins
        self.table = pairs if isinstance(pairs, PairTable) else PairTable(pairs)
        self.batch_size = batch_size
        self.seed = seed
        self.negatives_per_query = negatives_per_query
        self.shuffle = shuffle
        self.has_context = self.table.has_context
        self._check()
        count = len(self.table)
        self._topics: TopicOrder | None = None
        if clusters is not None:
            if not shuffle:
                raise ConfigError("`clusters` need `shuffle`: their batches have no other order.")
            ids = [query.query_id for query in self.table.queries]
            query_ids = [ids[row] for row in self.table.query_rows]
            self._topics = TopicOrder(query_ids, clusters, batch_size)
        self._shares = (np.bincount(self.table.positive_rows) / count).astype(np.float32)
        self._order: tuple[int, np.ndarray] = (-1, np.arange(count))

    def __repr__(self) -> str:
        return (
            f"PairDataset({self.num_pairs:,} pairs, {self.batch_size} in a batch,"
            f" {self.steps_per_epoch:,} batches an epoch)"
        )

    def reseed(self, seed: int) -> None:
        """Takes another seed, before any batch is made."""
        self.seed = seed
        self._order = (-1, self._order[1])

    def in_order(self) -> PairDataset:
        """Returns all pairs in the order of the data; the last batch may be smaller."""
        if not self.shuffle:
            return self
        return PairDataset(
            self.table,
            batch_size=self.batch_size,
            seed=self.seed,
            negatives_per_query=self.negatives_per_query,
            shuffle=False,
            margin_bins=self.margin_bins,
        )

    @property
    def num_pairs(self) -> int:
        """Pairs in an epoch, all that there are."""
        return len(self.table)

    def texts(self) -> Iterator[str]:
        """Yields the texts of all queries and documents once, and each context once."""
        for query in self.table.queries:
            yield query.text
        for document in self.table.documents:
            yield f"{document.title} {document.text}"
        contexts = (document.context for document in self.table.documents)
        yield from dict.fromkeys(text for text in contexts if isinstance(text, str))

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch: full ones only when shuffling, else with the rest as the last."""
        if self._topics is not None:
            return self._topics.steps_per_epoch
        count = len(self.table)
        return count // self.batch_size if self.shuffle else -(-count // self.batch_size)

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch: the last one of an epoch, where it does not fill up."""
        rest = 0 if self.shuffle else self.num_pairs % self.batch_size
        return rest or self.batch_size

    def rows(self, step: int) -> np.ndarray:
        """Returns which pairs stand in batch number `step`, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        known, order = self._order  # read once: two iterators may be in two epochs
        if self.shuffle and known != epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            if self._topics is None:
                order = generator.permutation(len(self.table))
            else:
                order = self._topics.epoch(generator)
            self._order = (epoch, order)
        start = place * self.batch_size
        return order[start : start + self.batch_size]

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step` as NumPy arrays, strings as `bytes` objects."""
        table, rows = self.table, self.rows(step)
        positives = table.positive_rows[rows]
        negatives, margins = self._negatives(step, rows)
        queries = table.query_rows[rows]
        # Row -1 is "no negative": title and text are empty, the key is 0.
        keys = np.where(negatives >= 0, table.document_keys[negatives], 0)
        batch = {
            "query": string_array([table.queries[row].text for row in queries], queries.shape),
            "document_title": self._texts(positives, "title"),
            "document_text": self._texts(positives, "text"),
            "document_key": table.document_keys[positives],
            "positive_keys": table.known_positives(queries),
            "negative_title": self._texts(negatives, "title"),
            "negative_text": self._texts(negatives, "text"),
            "negative_key": keys,
            "negative_margin": margins,
            "document_probability": self._shares[positives],
        }
        if self.has_context:
            batch["document_context"] = self._texts(positives, CONTEXT)
            batch["negative_context"] = self._texts(negatives, CONTEXT)
        return batch

    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the shares of documents that are positives, (N,) float32; of others 0."""
        return look_up(keys, *self._shares_by_key)

    @functools.cached_property
    def _shares_by_key(self) -> tuple[np.ndarray, np.ndarray]:
        keys = self.table.document_keys[: len(self._shares)]
        order = np.argsort(keys)
        return keys[order], self._shares[order]

    def _negatives(self, step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows of documents, (B, M), -1 = none, and their margins, NaN = unknown."""
        table, width = self.table, self.negatives_per_query
        negatives = np.full((len(rows), width), -1, np.int64)
        margins = np.zeros((len(rows), width), np.float32)
        if not width:
            return negatives, margins
        # The third word keeps this stream apart from the one of an epoch's order.
        generator = np.random.Generator(np.random.PCG64([self.seed, step, 1]))
        for place, row in enumerate(rows):
            given = np.arange(*table.negative_starts[row : row + 2])
            if len(given) > width:
                given = given[self._draw(table.negative_margins[given], generator)]
            negatives[place, : len(given)] = table.negative_rows[given]
            margins[place, : len(given)] = table.negative_margins[given]
        return negatives, margins

    def _draw(self, margins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Returns the places of M of a pair's negatives, drawn from its margins' parts or any."""
        width = self.negatives_per_query
        if not self.margin_bins:
            return generator.choice(len(margins), width, replace=False)
        lowest, highest = margins.min(), margins.max()
        shares = (margins - lowest) / max(highest - lowest, np.finfo(np.float32).tiny)
        bins = np.minimum((shares * self.margin_bins).astype(int), self.margin_bins - 1)
        left, drawn = np.arange(len(margins)), []
        for _ in range(width):
            inside = left[bins[left] == generator.choice(np.unique(bins[left]))]
            drawn.append(generator.choice(inside))
            left = left[left != drawn[-1]]
        return np.array(drawn)

    def _texts(self, rows: np.ndarray, field: str) -> np.ndarray:
        documents = self.table.documents
        return string_array(
            [getattr(documents[row], field) if row >= 0 else "" for row in rows.flat], rows.shape
        )

    def _check(self) -> None:
        count = len(self.table)
        if not count:
            raise ConfigError("`pairs` must hold at least one pair.")
        for name, least in (("batch_size", 1), ("seed", 0), ("negatives_per_query", 0)):
            value = getattr(self, name)
            require(value >= least, name, f"at least {least}", value)
        fits = not self.shuffle or self.batch_size <= count
        require(fits, "batch_size", f"at most the number of pairs, {count}", self.batch_size)
        wanted = self.negatives_per_query
        given = wanted == 0 or self.table.max_negatives > 0
        rule = "0, for no pair has given negatives (a dataset directory's are the files of pairs/)"
        require(given, "negatives_per_query", rule, wanted)
        bins = self.margin_bins
        require(bins >= 0, "margin_bins", "at least 0", bins)
        missing = int(np.isnan(self.table.negative_margins).sum()) if bins else 0
        rule = "0 where negatives have no `cross_scores` (tfde mine-negatives --cross_encoder)"
        require(not missing, "margin_bins", rule, f"{bins}, {missing} without")
