"""In which order a query's documents stand, given their scores: trec_eval's."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tfde.data.ids import parent_of


def ranking(results: Mapping[str, float]) -> list[str]:
    """Returns document ids by score, the best first.

    Scores are compared in float32; equal ones come by id, descending. So ranks agree with measures.
    """
    doc_ids = sorted(results, reverse=True)
    with np.errstate(over="ignore"):  # beyond float32 all are equal
        scores = np.array([results[doc_id] for doc_id in doc_ids]).astype(np.float32)
    return [doc_ids[row] for row in np.argsort(-scores, kind="stable")]


def without_query(
    results: Mapping[str, float], query_id: str, count: int | None = None
) -> dict[str, float]:
    """Returns a query's documents but the one of the same id, for sets whose queries are documents.

    Args:
        results: Score by document id.
        query_id: The query.
        count: How many to keep, the best; `None` keeps all.

    Source: BEIR's rule for Quora and ArguAna.
    """
    others = {doc_id: score for doc_id, score in results.items() if doc_id != query_id}
    return others if count is None else first_documents(others, count)


def first_documents(results: Mapping[str, float], count: int) -> dict[str, float]:
    """Returns the first documents of a query with their scores, in their order."""
    return {doc_id: results[doc_id] for doc_id in ranking(results)[:count]}


def best_passages(
    results: Mapping[str, float], separator: str, count: int | None = None
) -> dict[str, float]:
    """Returns whole documents in place of their passages, each with the score of its best one.

    Args:
        results: Score by the id of a passage, `PARENT` + separator + `PART`.
        separator: What stands in ids between.
        count: How many documents to keep, the best; `None` keeps all.

    Raises:
        ConfigError: an id is not of this form.

    Source: Dai and Callan 2019, "MaxP".
    """
    documents: dict[str, float] = {}
    for passage_id, score in results.items():
        doc_id = parent_of(passage_id, separator)
        if score > documents.get(doc_id, -math.inf):
            documents[doc_id] = score
    return first_documents(documents, len(documents) if count is None else count)
