"""A run's best documents, scored anew by a model that looks at query and document together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.special import log_softmax
from tqdm import tqdm

from tfde.data.batched import batched
from tfde.errors import ConfigError, DataError, require
from tfde.types import Document, Query, Run

_QUERIES_AT_ONCE = 64  # whose pairs are sorted by length together


class PairModel(Protocol):
    """What scores pairs: `CrossEncoder`, `Matcher`."""

    num_labels: int

    def score(
        self, pairs: Sequence[tuple[str, Document]], *, batch_size: int, show_progress: bool
    ) -> np.ndarray:
        """Returns (P,) or (P, N) logits."""
        ...


def rerank(
    model: PairModel,
    run: Run,
    queries: Sequence[Query],
    documents: Mapping[str, Document],
    *,
    depth: int = 100,
    label: int | None = None,
    batch_size: int = 32,
    show_progress: bool = False,
) -> Run:
    """Returns the run with the best documents of each query in the model's order.

    Pairs of some queries at a time are scored, those of like length in one batch. Documents below
    `depth` keep their order and follow the others, with lower scores.

    Args:
        model: Gives one score a pair, or logits of labels.
        run: Query id -> document id -> score.
        queries: The queries whose documents are reranked; others of the run are left out.
        documents: Document id -> document, of all that are scored.
        depth: How many documents of a query are scored.
        label: For a model with labels the one that says "relevant": the score is the logarithm of
            its probability. `None` takes the last.
        batch_size: Pairs a batch.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        ConfigError: `depth` is below 1; the model has no such label.
        DataError: a document of the run is not among `documents`.
    """
    score = _scorer(model, label)
    require(depth >= 1, "depth", "at least 1", depth)
    reranked: Run = {}
    wanted = [query for query in queries if query.query_id in run]
    progress = tqdm(total=len(wanted), unit="query", disable=not show_progress)
    with progress:
        for some in batched(wanted, _QUERIES_AT_ONCE):
            rankings = [ranking(run[query.query_id]) for query in some]
            pairs = [
                (query.text, _document(documents, doc_id, query))
                for query, doc_ids in zip(some, rankings, strict=True)
                for doc_id in doc_ids[:depth]
            ]
            scores = iter(score(pairs, batch_size).tolist())
            for query, doc_ids in zip(some, rankings, strict=True):
                found = {doc_id: next(scores) for doc_id in doc_ids[:depth]}
                lowest = min(found.values(), default=0.0)
                below = {d: lowest - place for place, d in enumerate(doc_ids[depth:], start=1)}
                reranked[query.query_id] = found | below
            progress.update(len(some))
    return reranked


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Returns document ids by score, the best first, equal ones by id."""
    return sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))


def _scorer(model: PairModel, label: int | None) -> Callable[[Any, int], np.ndarray]:
    labels = model.num_labels
    if label is not None and not 0 <= label < labels:
        raise ConfigError(f"`label` must be in [0, {labels - 1}]. Received: {label}")

    def score(pairs: list[tuple[str, Document]], batch_size: int) -> np.ndarray:
        logits = model.score(pairs, batch_size=batch_size, show_progress=False)
        if labels == 1:
            return logits
        return log_softmax(logits.astype(np.float64), axis=1)[:, -1 if label is None else label]

    return score


def _document(documents: Mapping[str, Document], doc_id: str, query: Query) -> Document:
    if doc_id not in documents:
        rule = f"the run's documents must be in the corpus (query {query.query_id})."
        raise DataError("run", None, rule, doc_id)
    return documents[doc_id]
