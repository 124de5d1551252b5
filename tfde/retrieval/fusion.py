"""Several runs as one: by ranks, or by scores that are brought to one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfde.data.ranking import ranking
from tfde.errors import require
from tfde.types import Run


def reciprocal_rank_fusion(runs: Sequence[Run], *, constant: float = 60.0) -> Run:
    """Returns the runs fused: a document's score is the sum over runs of 1 / (constant + rank).

    A run that does not have the document adds nothing; a query counts if one run has it.

    Args:
        runs: At least one, such as a dual encoder's and BM25's.
        constant: The larger, the less the first ranks stand out.

    Raises:
        ConfigError: no runs; a negative constant.

    Source: Cormack et al. 2009, section 2 (k = 60).
    """
    require(len(runs) > 0, "runs", "not empty", runs)
    require(constant >= 0, "constant", "at least 0", constant)
    fused: Run = {}
    for run in runs:
        for query_id, results in run.items():
            scores = fused.setdefault(query_id, {})
            for rank, doc_id in enumerate(ranking(results), start=1):
                scores[doc_id] = scores.get(doc_id, 0.0) + 1.0 / (constant + rank)
    return fused


def weighted_score_fusion(runs: Sequence[Run], weights: Sequence[float]) -> Run:
    """Returns the runs fused: a document's score is the weighted sum of its scaled scores.

    A run's scores for a query are scaled to [0, 1], its best document's to 1 and its last one's to
    0. A run that does not have the document adds nothing; a query counts if one run has it. This
    says more than ranks where the weights suit the runs, so choose them on a dev split.

    Args:
        runs: At least one, such as a dual encoder's and BM25's, of about the same depth.
        weights: One for each run, above 0; they are divided by the largest.

    Raises:
        ConfigError: no runs; not one weight above 0 for each.

    Source: Bruch et al. 2023, "An Analysis of Fusion Functions for Hybrid Retrieval", section 3
        (convex combination of min-max scaled scores).
    """
    require(len(runs) > 0, "runs", "not empty", runs)
    fits = len(weights) == len(runs) and all(0 < weight < math.inf for weight in weights)
    require(fits, "weights", f"{len(runs)} numbers above 0, one for each run", list(weights))
    fused: Run = {}
    # Only their ratios count, and scores are compared in float32.
    shares = [weight / max(weights) for weight in weights]
    for run, share in zip(runs, shares, strict=True):
        for query_id, results in run.items():
            scores = fused.setdefault(query_id, {})
            low, high = min(results.values(), default=0.0), max(results.values(), default=0.0)
            for doc_id, score in results.items():
                # By halves: the difference of two finite scores may be infinite.
                scaled = (score / 2 - low / 2) / (high / 2 - low / 2) if high > low else 1.0
                scores[doc_id] = scores.get(doc_id, 0.0) + share * scaled
    return fused
