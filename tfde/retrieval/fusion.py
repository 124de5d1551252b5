"""Several runs as one: each document's ranks decide, so the runs' scores need not be alike."""

from __future__ import annotations

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
