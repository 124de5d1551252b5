"""Batches whose pairs come from several sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tfde.data.largest_remainders import largest_remainders
from tfde.data.pairs.batches import PairBatches
from tfde.errors import ConfigError, require


class PairMixture(PairBatches):
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

    @property
    def num_pairs(self) -> int:
        """Pairs in an epoch of all parts."""
        return sum(part.num_pairs for part in self.parts)

    def texts(self) -> Iterator[str]:
        """Yields texts of all parts."""
        return itertools.chain.from_iterable(part.texts() for part in self.parts)

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
        return {name: _stack([batch[name] for batch in batches]) for name in batches[0]}


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


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    """Stacks rows; narrower ones are filled up with 0 or the empty string, "none"."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    filler = b"" if parts[0].dtype == object else 0
    stacked = np.full((sum(map(len, parts)), width), filler, parts[0].dtype)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked
