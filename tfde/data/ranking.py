"""In which order a query's documents stand, given their scores: trec_eval's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def ranking(results: Mapping[str, float]) -> list[str]:
    """Returns document ids by score, the best first.

    Scores are compared in float32; equal ones come by id, descending. So ranks agree with measures.
    """
    doc_ids = sorted(results, reverse=True)
    scores = np.array([results[doc_id] for doc_id in doc_ids], np.float32)
    return [doc_ids[row] for row in np.argsort(-scores, kind="stable")]


def first_documents(results: Mapping[str, float], count: int) -> dict[str, float]:
    """Returns the first documents of a query with their scores, in their order."""
    return {doc_id: results[doc_id] for doc_id in ranking(results)[:count]}
