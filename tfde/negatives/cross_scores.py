"""What a cross-encoder says of queries and documents while hard negatives are mined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tfde.errors import ConfigError
from tfde.types import Document, Query

_BATCH = 32


class ScoresPairs(Protocol):
    """What mining needs of a cross-encoder; `tfde.CrossEncoder` has it."""

    def fingerprint(self) -> str:
        """Returns what changes with the model."""
        ...

    def score(self, pairs: Sequence[tuple[str, Document]], *, batch_size: int) -> np.ndarray:
        """Returns one score a pair, (P,) float32."""
        ...


class CrossScores:
    """The scores of a cross-encoder, each asked for once.

    Args:
        scorer: The cross-encoder.
        read: Gives a document by id.
    """

    def __init__(self, scorer: ScoresPairs, read: Callable[[str], Document]) -> None:
        self._scorer, self._read = scorer, read
        self._known: dict[tuple[str, str], float] = {}

    def of(self, pairs: Sequence[tuple[Query, str]]) -> list[float]:
        """Returns the score of each pair of a query and the id of a document.

        Raises:
            ConfigError: the model gives more than one score a pair, or none that is a number.
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
        scores = self._scorer.score(texts, batch_size=_BATCH)
        if scores.shape != (len(texts),):
            raise ConfigError(
                "`cross_encoder` must give one score a pair."
                f" Received: a model with {scores.shape[-1]} labels"
            )
        if not np.isfinite(scores).all():
            raise ConfigError("`cross_encoder` must give finite scores; it gives NaN or infinity.")
        return [float(score) for score in scores]
