"""Pairs of texts with labels, and groups of pairs of which one is right, in batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.data.formats import labelled_pairs
from tfde.data.formats.records import Source
from tfde.errors import ConfigError, DataError, require
from tfde.storage.intake import Intake
from tfde.types import Pair

logger = logging.getLogger("tfde")


@dataclass(frozen=True)
class LabelledPairs:
    """P pairs of texts with their labels.

    Args:
        first: First texts, such as queries.
        titles: Titles of the second ones; empty where they have none.
        texts: The second ones.
        labels: (P,) float32: a number of `names`, or the value itself where there are none.
        names: The labels in order; empty for values.
        group_size: So many pairs one after the other share a first text; of these the first one
            is right, and labelled 1.
    """

    first: list[str]
    titles: list[str]
    texts: list[str]
    labels: np.ndarray
    names: tuple[str, ...] = ()
    group_size: int = 1

    def __len__(self) -> int:
        return len(self.first)

    def limited(self, number: int | None, *, seed: int) -> LabelledPairs:
        """Returns a sample of at most `number` pairs (whole groups), in their old order."""
        groups = len(self) // self.group_size
        if number is None or number >= len(self):
            return self
        rng = np.random.Generator(np.random.PCG64(seed))
        kept = np.sort(rng.permutation(groups)[: max(number // self.group_size, 1)])
        return self.taken(kept)

    def taken(self, groups: np.ndarray) -> LabelledPairs:
        """Returns the pairs of these groups (pairs, where groups are of one) in this order."""
        rows = (groups[:, None] * self.group_size + np.arange(self.group_size)).ravel()
        first, titles, texts = (
            [column[row] for row in rows] for column in (self.first, self.titles, self.texts)
        )
        return LabelledPairs(first, titles, texts, self.labels[rows], self.names, self.group_size)


class LabelledBatches:
    """Pairs in batches; which rows stand in batch s is a pure function of (seed, s).

    Args:
        pairs: The pairs; each epoch has all of them in another order.
        batch_size: Pairs a batch, a multiple of the size of a group.
        seed: Of the order.
        shuffle: Whether epochs have orders; else it is that of the pairs.
        whole: Whether a last batch that does not fill up is there; else its pairs are left out.

    Raises:
        ConfigError: there is no pair, or the batch holds no whole groups.
    """

    def __init__(
        self,
        pairs: LabelledPairs,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        whole: bool = False,
    ) -> None:
        size = pairs.group_size
        holds = batch_size >= 1 and batch_size % size == 0
        require(holds, "batch_size", f"a multiple of {size}, the pairs of a group", batch_size)
        require(len(pairs) > 0, "pairs", "not empty", len(pairs))
        self.batch_size = min(batch_size, len(pairs))
        self.group_size = size
        self.pairs, self._seed, self._shuffle = pairs, seed, shuffle
        self._rest = len(pairs) % self.batch_size if whole else 0
        self._order: tuple[int, np.ndarray] = (-1, np.arange(len(pairs) // size))

    def reseed(self, seed: int) -> None:
        """Takes another seed, before any batch is made."""
        self._seed = seed
        self._order = (-1, self._order[1])

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return len(self.pairs) // self.batch_size + bool(self._rest)

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch, the last one of an epoch."""
        return self._rest or self.batch_size

    def batch(self, step: int) -> LabelledPairs:
        """Returns batch number `step`, from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        known, order = self._order  # read once: two iterators may be in two epochs
        if self._shuffle and known != epoch:
            rng = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            order = rng.permutation(len(self.pairs) // self.group_size)
            self._order = (epoch, order)
        size = self.batch_size // self.group_size
        return self.pairs.taken(order[place * size : (place + 1) * size])

    def dataset(self, *, start_step: int = 0) -> tf.data.Dataset:
        """Returns an endless dataset of `first`, `title`, `text` (B,) string, `label` float32."""
        strings = tf.TensorSpec([None], tf.string)
        signature = {"first": strings, "title": strings, "text": strings}
        signature["label"] = tf.TensorSpec([None], tf.float32)

        def batches() -> Iterator[dict[str, Any]]:
            step = start_step
            while True:
                pairs = self.batch(step)
                yield {
                    "first": pairs.first,
                    "title": pairs.titles,
                    "text": pairs.texts,
                    "label": pairs.labels,
                }
                step += 1

        return tf.data.Dataset.from_generator(batches, output_signature=signature)


def read_labelled_pairs(
    path: str | Path,
    split: str,
    *,
    names: Sequence[str] | None = None,
    values: bool = False,
) -> LabelledPairs:
    """Reads a split of a folder of labelled pairs, `SPLIT.tsv[.gz]` with a header, as GLUE has it.

    Args:
        path: The folder, such as `tfde convert --format sentence-pairs` writes it.
        split: The file's name without its ending.
        names: The labels that there are; `None` takes those that are found, sorted.
        values: Whether labels are numbers, such as degrees of similarity.

    Raises:
        ConfigError: there is no such file; all pairs have one label.
        DataError: a row is damaged, a label is none of `names`, or is no number.
    """
    files = [Path(path) / f"{split}.tsv{ending}" for ending in ("", ".gz", ".zst")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ConfigError(f"{files[0]}: does not exist, packed or not; a folder of labelled pairs")
    intake = Intake()
    pairs = []
    numbers: list[float] = []
    for pair in labelled_pairs.read([Source("", file, split)], intake):
        pairs.append(pair)
        if values:
            numbers.append(_number(file, intake.line, pair.label))
        elif names is not None and pair.label not in names:
            rule = f"a label must be one of {', '.join(names)}."
            raise DataError(file, intake.line, rule, pair.label)
    if not pairs:
        raise DataError(file, None, "must hold at least one pair.")
    found = _in_order({pair.label for pair in pairs})
    if not values:
        names = tuple(names or found)
        if len(found) < 2:
            raise ConfigError(
                f"{file}: pairs must have at least two labels. Received: {found[0]!r} alone"
            )
        numbers = [names.index(pair.label) for pair in pairs]
    return LabelledPairs(
        [pair.first for pair in pairs],
        [""] * len(pairs),
        [pair.second for pair in pairs],
        np.array(numbers, np.float32),
        () if values else tuple(names or ()),
    )


def ranked_pairs(pairs: Iterable[Pair], *, negatives: int, path: str | Path) -> LabelledPairs:
    """Returns groups of a query with its positive and so many given negatives, labelled 1 and 0.

    Args:
        pairs: Of a pair file; those with fewer negatives are left out, which is logged.
        negatives: Of each pair; more are not looked at. One that is a known positive of the query
            does not count.
        path: The file, for messages.

    Raises:
        ConfigError: no pair has so many.
    """
    rows: list[tuple[str, str, str]] = []
    left_out = most = 0
    for pair in pairs:
        known = {pair.positive.doc_id, *pair.positive_doc_ids}
        wrong = [document for document in pair.negatives if document.doc_id not in known]
        most = max(most, len(wrong))
        if len(wrong) < negatives:
            left_out += 1
            continue
        documents = (pair.positive, *wrong[:negatives])
        rows += [(pair.query.text, document.title, document.text) for document in documents]
    if not rows:
        raise ConfigError(
            f"{path}: `negatives` must be at most what a pair has, {most}; tfde mine-negatives"
            f" finds more. Received: {negatives}"
        )
    if left_out:
        logger.warning(
            "%s: left out: %d pairs have fewer than %d negatives", path, left_out, negatives
        )
    labels = np.zeros(len(rows), np.float32)
    labels[:: negatives + 1] = 1.0
    first, titles, texts = map(list, zip(*rows, strict=True))
    return LabelledPairs(first, titles, texts, labels, ("0", "1"), negatives + 1)


def _in_order(names: Iterable[str]) -> list[str]:
    """Returns names of labels sorted; as numbers, where all are."""
    ordered = sorted(names)
    try:
        return sorted(ordered, key=float)
    except ValueError:
        return ordered


def _number(file: Path, line: int | None, label: str) -> float:
    try:
        value = float(label)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise DataError(file, line, "a label must be a number.", label)
    return value
