"""Batches whose pairs come from several sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tfde.data.largest_remainders import largest_remainders
from tfde.data.pairs.batches import PairBatches
from tfde.errors import ConfigError, require


class _Sources(PairBatches):
    """Batches that are made of those of several parts."""

    parts: tuple[PairBatches, ...]

    @property
    def num_pairs(self) -> int:
        """Pairs in an epoch of all parts."""
        return sum(part.num_pairs for part in self.parts)

    def texts(self) -> Iterator[str]:
        """Yields texts of all parts."""
        return itertools.chain.from_iterable(part.texts() for part in self.parts)


class PairMixture(_Sources):
    """Each batch has the rows of one batch of each part, one part after the other.

    So every batch has the same share of each part, whose epochs end apart.

    Args:
        parts: Batches of pairs; `shares_of_batch` says how large.

    Raises:
        ConfigError: there are no parts.
    """

    def __init__(self, parts: Sequence[PairBatches]) -> None:
        if not parts:
            raise ConfigError("`parts` must hold at least one source of pairs.")
        self.parts = tuple(parts)
        self.batch_size = sum(part.batch_size for part in parts)
        self.negatives_per_query = max(part.negatives_per_query for part in parts)
        self.has_context = all(part.has_context for part in parts)

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch."""
        return sum(part.smallest_batch for part in self.parts)

    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns how often a document is the positive of a row, (N,) float32."""
        rows = sum(part.shares_of(keys) * part.batch_size for part in self.parts)
        return np.asarray(rows / self.batch_size, np.float32)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step` as NumPy arrays, strings as `bytes` objects."""
        batches = [part.batch(step) for part in self.parts]
        for part, batch in zip(self.parts, batches, strict=True):
            # A document may stand in other parts too; what a stream did not count is its guess.
            own = batch["document_probability"] * np.float32(part.batch_size / self.batch_size)
            of_all = self.shares_of(batch["document_key"])
            batch["document_probability"] = np.maximum(own, of_all)
        return {name: _stack([batch[name] for batch in batches]) for name in self.element_spec}


class PairTurns(_Sources):
    """Each batch is one of a single part; parts take turns, as often as their weights say.

    In every hundred batches each part has its share, so no part is far behind at any step. A query
    chooses among documents of its own source only.

    Args:
        parts: Batches of pairs, all of the same size.
        weights: How often each part's turn comes, above 0.
        seed: Decides whose turn it is.

    Raises:
        ConfigError: there are no parts; they differ in size; a weight is not above 0, or so small
            that the part would have no batch in a hundred.
    """

    _ROUND = 100

    def __init__(
        self, parts: Sequence[PairBatches], weights: Sequence[float], *, seed: int
    ) -> None:
        sizes = {part.batch_size for part in parts}
        require(len(sizes) == 1, "parts", "sources with batches of one size", sorted(sizes))
        self._turns = largest_remainders(self._ROUND, weights)
        if 0 in self._turns:
            place = self._turns.index(0)
            share = weights[place] / sum(weights)
            rule = "large enough for a batch in a hundred (`weight`, or `source_temperature`)"
            require(False, f"mixture[{place}]", rule, f"a share of {share:.2g}")
        self.parts = tuple(parts)
        self.seed = seed
        self.batch_size = sizes.pop()
        self.negatives_per_query = max(part.negatives_per_query for part in parts)
        self.has_context = all(part.has_context for part in parts)

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch."""
        return min(part.smallest_batch for part in self.parts)

    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns how often a document is the positive of a row, (N,) float32."""
        turns = zip(self.parts, self._turns, strict=True)
        return np.asarray(
            sum(part.shares_of(keys) * count for part, count in turns) / self._ROUND, np.float32
        )

    def turn(self, step: int) -> tuple[int, int]:
        """Returns whose turn a batch is, and which of that part's batches it is."""
        before, place = divmod(step, self._ROUND)
        generator = np.random.Generator(np.random.PCG64([self.seed, before, 2]))
        order = generator.permutation(np.repeat(np.arange(len(self.parts)), self._turns))
        part = int(order[place])
        return part, before * self._turns[part] + int((order[:place] == part).sum())

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step` as NumPy arrays, strings as `bytes` objects."""
        part, number = self.turn(step)
        batch = self.parts[part].batch(number)
        specs = self.element_spec
        widths = {name: spec.shape[1] for name, spec in specs.items() if spec.shape.rank == 2}
        return {name: _stack([batch[name]], widths.get(name)) for name in specs}


def shares_of_batch(batch_size: int, weights: Sequence[float]) -> list[int]:
    """Returns how many rows of a batch each source has (largest remainders).

    Args:
        batch_size: Rows of a batch.
        weights: Above 0.

    Raises:
        ConfigError: a weight is not above 0; a source would have no row.
    """
    for weight in weights:
        require(0 < weight < float("inf"), "weight", "above 0", weight)
    rows = largest_remainders(batch_size, weights)
    if 0 in rows:
        raise ConfigError(
            "`batch_size` must be large enough for a row of each source."
            f" Received: batch_size={batch_size}, weights {', '.join(f'{w:g}' for w in weights)}"
        )
    return rows


def _stack(parts: list[np.ndarray], width: int | None = None) -> np.ndarray:
    """Stacks rows; narrower ones are filled up with 0 or the empty string, "none"."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts) if width is None else width
    filler = b"" if parts[0].dtype == object else 0
    stacked = np.full((sum(map(len, parts)), width), filler, parts[0].dtype)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked
