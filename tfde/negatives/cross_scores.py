"""What a cross-encoder says of queries and documents while hard negatives are mined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tfde.errors import ConfigError
from tfde.matching.relevance import PairModel, relevance_of
from tfde.types import Document, Query

_BATCH = 32


class ScoresPairs(PairModel, Protocol):
    """What mining needs of a cross-encoder; `tfde.CrossEncoder` has it, and `tfde.Matcher`."""

    def fingerprint(self) -> str:
        """Returns what changes with the model."""
        ...


class CrossScores:
    """The scores of a cross-encoder, each asked for once.

    Args:
        scorer: The cross-encoder.
        read: Gives a document by id.
        label: As of `MiningRules.cross_label`.

    Raises:
        ConfigError: as of `relevant_label`.
    """

    def __init__(
        self, scorer: ScoresPairs, read: Callable[[str], Document], label: str | None = None
    ) -> None:
        self._score, self._read = relevance_of(scorer, label), read
        self._known: dict[tuple[str, str], float] = {}

    def of(self, pairs: Sequence[tuple[Query, str]]) -> list[float]:
        """Returns the score of each pair of a query and the id of a document.

        Raises:
            ConfigError: the model gives none that is a number.
        """
        unknown = {
            (query.query_id, doc_id): (query.text, doc_id)
            for query, doc_id in pairs
            if (query.query_id, doc_id) not in self._known
        }
        if unknown:
            texts = [(text, self._read(doc_id)) for text, doc_id in unknown.values()]
            self._known |= zip(unknown, self._ask(texts), strict=True)
        return [self._known[query.query_id, doc_id] for query, doc_id in pairs]

    def _ask(self, texts: Sequence[tuple[str, Document]]) -> list[float]:
        scores = self._score(texts, _BATCH)
        if not np.isfinite(scores).all():
            raise ConfigError("`cross_encoder` must give finite scores; it gives NaN or infinity.")
        return [float(score) for score in scores]
