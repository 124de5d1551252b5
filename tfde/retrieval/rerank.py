"""A run's best documents, scored anew by a model that looks at query and document together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfde.argument_types import typed
from tfde.data.batched import batched
from tfde.data.ranking import ranking
from tfde.errors import DataError, require
from tfde.matching.relevance import PairModel, relevance_of
from tfde.types import Document, Query, Run

_QUERIES_AT_ONCE = 256  # whose documents, many of them common, are scored together


@typed
def rerank(
    model: PairModel,
    run: Run,
    queries: Sequence[Query],
    documents: Mapping[str, Document],
    *,
    depth: int = 100,
    label: str | None = None,
    batch_size: int = 32,
    show_progress: bool = False,
    source: str | Path = "run",
) -> Run:
    """Returns the run with the best documents of each query in the model's order.

    Pairs of some queries at a time are scored, those of like length in one batch. A model that
    encodes documents by themselves encodes each once for all these queries. Documents below `depth`
    keep their order and follow the others, with lower scores.

    Args:
        model: Gives one score a pair, or logits of labels.
        run: Query id -> document id -> score.
        queries: The queries whose documents are reranked; others of the run are left out.
        documents: Document id -> document, of all that are scored.
        depth: How many documents of a query are scored.
        label: For a model with labels the one that says "relevant", see `relevant_label`: the
            score is the logarithm of its probability.
        batch_size: Pairs a batch.
        show_progress: Whether progress bars go to stderr, for some queries at a time.
        source: Where the run is from, for messages.

    Raises:
        ConfigError: `depth` is below 1; the model has no such label, or one must be chosen.
        DataError: a document of the run is not among `documents`.
    """
    score = relevance_of(model, label)
    require(depth >= 1, "depth", "at least 1", depth)
    reranked: Run = {}
    wanted = [query for query in queries if query.query_id in run]
    for query in wanted:  # before anything is scored
        for doc_id in ranking(run[query.query_id])[:depth]:
            if doc_id not in documents:
                rule = f"its documents must be in the corpus (query {query.query_id})."
                raise DataError(source, None, rule, doc_id)
    for some in batched(wanted, _QUERIES_AT_ONCE):
        rankings = [ranking(run[query.query_id]) for query in some]
        pairs = [
            (query.text, documents[doc_id])
            for query, doc_ids in zip(some, rankings, strict=True)
            for doc_id in doc_ids[:depth]
        ]
        scores = iter(score(pairs, batch_size, show_progress).tolist())
        for query, doc_ids in zip(some, rankings, strict=True):
            found = {doc_id: next(scores) for doc_id in doc_ids[:depth]}
            lowest = min(found.values(), default=0.0)
            below = {d: lowest - place for place, d in enumerate(doc_ids[depth:], start=1)}
            reranked[query.query_id] = found | below
    return reranked
