"""The cheapest way to search a ScaNN index that still finds a wanted share of the best."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import numpy as np

from tfde.errors import ConfigError, require
from tfde.retrieval.recall import measure_recall
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.retrieval.top_k import exact_top_k

_LEAST_QUERIES = 20
_TIMED_QUERIES = 100
# Candidates that are scored again, in multiples of k.
_REORDER = (1, 2, 3, 5, 10, 20, 50, 100)


class Trial(NamedTuple):
    """One way to search: what it finds of the tuning queries' best, and what a query costs."""

    leaves: int | None
    reorder: int
    recall: float
    seconds: float


class Tuning(NamedTuple):
    """What was chosen and why.

    Args:
        parameters: Those of the index, with the chosen leaves and candidates.
        trials: For each number of candidates the fewest leaves that reach the target, by cost.
        recall: Of the chosen way, on the half of the queries that had no part in the choice.
    """

    parameters: ScannParameters
    trials: list[Trial]
    recall: float


def check_target(target_recall: float, num_queries: int) -> None:
    """Refuses what no index can be tuned to, before one is built.

    Raises:
        ConfigError: no share, or too few queries to measure with.
    """
    require(0 < target_recall <= 1, "target_recall", "in (0, 1]", target_recall)
    rule = f"at least {_LEAST_QUERIES}, for a target recall"
    require(num_queries >= _LEAST_QUERIES, "number of queries", rule, num_queries)


def tune_scann(
    index: ScannIndex, query_embeddings: np.ndarray, *, target_recall: float, k: int = 10
) -> Tuning:
    """Finds how many leaves and candidates a search needs for a recall, at the least time.

    Half of the queries choose, the other half measure. Nothing is built again: leaves and codes
    stay as they are.

    Args:
        index: Hash or tree; codes alone have nothing to choose (`reorder` of 0).
        query_embeddings: `(Q, D)` floating, 20 or more.
        target_recall: In (0, 1], of the exact `k` best.
        k: At least 1.

    Raises:
        ConfigError: another target, too few queries, an index without a choice, or one that does
            not reach the target whatever is searched.
    """
    check_target(target_recall, len(query_embeddings))
    parameters = index.parameters
    if parameters.kind == "exact" or not parameters.reorder:
        raise ConfigError(
            "a target recall needs an index of kind hash or tree with `reorder`. Received: kind="
            f"{parameters.kind}, reorder={parameters.reorder}"
        )
    tuning, held_out = query_embeddings[::2], query_embeddings[1::2]
    finder = _Finder(index, np.ascontiguousarray(tuning, np.float32), k)
    k = min(k, index.shape[0])
    trials = []
    for reorder in sorted({min(factor * k, index.shape[0]) for factor in _REORDER}):
        trial = finder.cheapest(reorder, target_recall)
        if trial is not None:
            trials.append(trial)
    if not trials:
        best = finder.recall(parameters.num_leaves, max(_REORDER) * k)
        raise ConfigError(
            f"`target_recall` must be within reach of this index, which finds {best:.4f} at most;"
            f" other codes or leaves may find more. Received: {target_recall}"
        )
    trials.sort(key=lambda trial: trial.seconds)
    chosen = dataclasses.replace(
        parameters, num_leaves_to_search=trials[0].leaves, reorder=trials[0].reorder
    )
    measured = measure_recall(index.searched_as(chosen), index.vectors(), held_out, k)
    return Tuning(chosen, trials, measured.recall)


class _Finder:
    """Recall and time of ways to search, on the same queries."""

    def __init__(self, index: ScannIndex, queries: np.ndarray, k: int) -> None:
        self._index = index
        self._queries = queries
        self._k = min(k, index.shape[0])
        scores, _ = exact_top_k([index.vectors()], queries, self._k)
        # Documents with equal vectors may stand for one another; sums differ in their order.
        last = scores[:, -1]
        self._least = last - 1e-5 * np.maximum(1.0, np.abs(last))

    def cheapest(self, reorder: int, target: float) -> Trial | None:
        """Returns the fewest leaves that reach the target, `None` if all leaves do not."""
        most = self._index.parameters.num_leaves
        recall = self.recall(most, reorder)
        if recall < target:
            return None
        leaves = most
        if most is not None:
            low, high = 0, most  # the target is missed with `low` leaves, and met with `high`
            while high - low > 1:
                middle = (low + high) // 2
                found = self.recall(middle, reorder)
                low, high = (low, middle) if found >= target else (middle, high)
                recall = found if found >= target else recall
            leaves = high
        return Trial(leaves, reorder, recall, self._seconds(leaves, reorder))

    def recall(self, leaves: int | None, reorder: int) -> float:
        """Returns the share of the exact best that is found."""
        scores, _ = self._search(self._queries, leaves, reorder)
        return float((scores >= self._least[:, None]).mean())

    def _seconds(self, leaves: int | None, reorder: int) -> float:
        """Returns the median time of one query."""
        times = []
        for row in range(min(_TIMED_QUERIES, len(self._queries))):
            start = time.perf_counter()
            self._search(self._queries[row : row + 1], leaves, reorder)
            times.append(time.perf_counter() - start)
        return float(np.median(times))

    def _search(
        self, queries: np.ndarray, leaves: int | None, reorder: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search_positions(
            queries, self._k, leaves_to_search=leaves, pre_reorder_num_neighbors=reorder
        )
