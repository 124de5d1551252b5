"""Batches of pairs that are made as they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tfde.data.ids import key_of
from tfde.data.pairs.batches import PairBatches, look_up, padded_width, string_array
from tfde.errors import require
from tfde.types import Pair

_FIRST_PAIRS = 100_000


class PairSource(Protocol):
    """An endless stream of pairs, any of which can be asked for by its number."""

    def __len__(self) -> int:
        """Returns the number of pairs in an epoch."""

    def pair(self, number: int) -> Pair:
        """Returns pair `number`, counted from 0 over all epochs."""


class StreamedPairs(PairBatches):
    """Batches of a stream's pairs in its order; nothing of it is held in memory.

    Args:
        stream: The pairs, such as `tfde.pretraining.pair_stream.PairStream`.
        batch_size: Pairs in a batch, B.
        count_documents: Whether `document_probability` is estimated, from the documents of the
            first 100,000 pairs; else it is 0. Sampling correction needs it.

    Raises:
        ConfigError: `batch_size` is below 1.
    """

    def __init__(
        self, stream: PairSource, *, batch_size: int, count_documents: bool = False
    ) -> None:
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self.stream = stream
        self.batch_size = batch_size
        self.count_documents = count_documents

    @property
    def num_pairs(self) -> int:
        """Pairs in an epoch."""
        return len(self.stream)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step` as NumPy arrays, strings as `bytes` objects."""
        first, size = step * self.batch_size, self.batch_size
        pairs = [self.stream.pair(number) for number in range(first, first + size)]
        keys = np.array([key_of(pair.positive.doc_id) for pair in pairs], np.int64)
        known = [{pair.positive.doc_id, *pair.positive_doc_ids} for pair in pairs]
        positives = np.zeros((size, padded_width(max(map(len, known)))), np.int64)
        for row, ids in enumerate(known):
            positives[row, : len(ids)] = sorted(map(key_of, ids))
        nothing = string_array([], (size, 0))
        return {
            "query": string_array([pair.query.text for pair in pairs], (size,)),
            "document_title": string_array([pair.positive.title for pair in pairs], (size,)),
            "document_text": string_array([pair.positive.text for pair in pairs], (size,)),
            "document_key": keys,
            "positive_keys": positives,
            "negative_title": nothing,
            "negative_text": nothing,
            "negative_key": np.zeros((size, 0), np.int64),
            "negative_margin": np.zeros((size, 0), np.float32),
            "document_probability": self._probabilities(keys),
        }

    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the shares of documents that were counted, (N,) float32; of others 0."""
        return look_up(keys, *self._shares)

    def texts(self) -> Iterator[str]:
        """Yields texts of the first 100,000 pairs."""
        for pair in self._first_pairs():
            yield pair.query.text
            yield f"{pair.positive.title} {pair.positive.text}"

    def _first_pairs(self) -> Iterator[Pair]:
        return map(self.stream.pair, range(min(_FIRST_PAIRS, len(self.stream))))

    @functools.cached_property
    def _shares(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys of the documents that were counted, in order, and their shares."""
        if not self.count_documents:
            return np.zeros(1, np.int64), np.zeros(1, np.float32)
        keys = np.array([key_of(pair.positive.doc_id) for pair in self._first_pairs()], np.int64)
        keys, times = np.unique(keys, return_counts=True)
        return keys, (times / times.sum()).astype(np.float32)

    def _probabilities(self, keys: np.ndarray) -> np.ndarray:
        """Returns the shares of documents, (B,); one that was not counted has the smallest."""
        return np.maximum(self.shares_of(keys), self._shares[1].min())
