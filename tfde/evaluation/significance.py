"""How sure a mean over queries is, and which of several systems is better on the same queries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfde.data.ranking import first_documents
from tfde.errors import require
from tfde.types import Run

RESAMPLES = 9999
CONFIDENCE = 0.95
_BATCH = 256  # resamples at once, whatever the number of queries


class Interval(NamedTuple):
    """A mean, and between which values it lies with the confidence that was asked for."""

    mean: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A system beside another one.

    Attributes:
        difference: Its mean over queries less the other's, with the interval.
        p_value: How often chance alone gives a difference as large, in either direction.
        gains: Queries on which it is better.
        losses: Queries on which it is worse.
    """

    difference: Interval
    p_value: float
    gains: int
    losses: int


def mean_interval(
    values: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Returns the mean of a measure over queries with its bootstrap interval.

    Queries are drawn with replacement, 9,999 times; the interval holds the middle of the means.

    Args:
        values: Of each query.
        confidence: Share of the means that the interval holds.
        seed: Of the draws.

    Raises:
        ConfigError: no values; a confidence outside (0, 1).

    Source: Efron and Tibshirani 1993, chapter 13 (percentiles); scipy.stats.bootstrap.
    """
    require(0 < confidence < 1, "confidence", "in (0, 1)", confidence)
    array = np.asarray(values, np.float64)
    require(array.size > 0, "values", "not empty", list(values))
    mean = float(array.mean())
    if np.ptp(array) == 0:  # nothing to draw from: scipy says NaN
        return Interval(mean, mean, mean)
    found = stats.bootstrap(
        (array,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


def compare(
    values: Sequence[float],
    others: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Comparison:
    """Compares two systems on the same queries: paired randomization test, bootstrap interval.

    Which of the two values of a query is whose is decided anew by chance, 9,999 times. One query
    proves nothing: its p-value is 1.

    Args:
        values: A measure of one system, of each query.
        others: Of the other system, in the same order of queries.
        confidence: Of the interval.
        seed: Of test and interval.

    Raises:
        ConfigError: the systems have not the same number of values, or none.

    Source: Smucker et al. 2007 (randomization over queries); scipy.stats.permutation_test.
    """
    one, other = np.asarray(values, np.float64), np.asarray(others, np.float64)
    require(len(one) == len(other), "others", f"{len(one)} values, as `values`", len(other))
    differences = one - other
    interval = mean_interval(differences.tolist(), confidence=confidence, seed=seed)
    p_value = 1.0
    if len(one) > 1 and differences.any():
        p_value = float(
            stats.permutation_test(
                (one, other),
                _mean_difference,
                permutation_type="samples",
                vectorized=True,
                n_resamples=RESAMPLES,
                batch=_BATCH,
                rng=np.random.default_rng(seed),
            ).pvalue
        )
    return Comparison(interval, p_value, int((differences > 0).sum()), int((differences < 0).sum()))


def correct(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number: the false discovery rate at which each counts.

    Source: Benjamini and Hochberg 1995; scipy.stats.false_discovery_control.
    """
    if not len(p_values):
        return []
    return [float(value) for value in stats.false_discovery_control(np.asarray(p_values))]


def _mean_difference(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
    return np.mean(one - other, axis=axis)


@dataclass(frozen=True)
class EvaluatedSystem:
    """A system and what it did.

    Args:
        name: What it is called; no two have the same name.
        run: Its documents for each query.
        values: Query -> measure -> value, of all judged queries (see `per_query`).
        seconds: What it took; `None` where the run was given.
        cut: What is to say of the texts that it cut, in one line; empty where nothing is known.
    """

    name: str
    run: Run
    values: dict[str, dict[str, float]]
    seconds: float | None
    cut: str = ""

    def column(self, measure: str) -> list[float]:
        """Returns a measure of every query."""
        return [row[measure] for row in self.values.values()]

    def interval(self, measure: str) -> Interval:
        """Returns the mean over queries with its bootstrap interval."""
        return mean_interval(self.column(measure))

    def ranks(self, query_id: str) -> dict[str, int]:
        """Returns document -> rank from 1, in trec_eval's order."""
        found = self.run.get(query_id, {})
        return {d: rank for rank, d in enumerate(first_documents(found, len(found)), start=1)}


class ComparedPair(NamedTuple):
    """Two systems in one measure.

    Attributes:
        first: Name of a system.
        second: Name of the one that it is compared with.
        measure: The measure.
        comparison: First less second.
        corrected: The p-value, corrected for all pairs and measures that are compared.
    """

    first: str
    second: str
    measure: str
    comparison: Comparison
    corrected: float


def compare_systems(
    systems: Sequence[EvaluatedSystem], measures: Sequence[str]
) -> list[ComparedPair]:
    """Compares every two systems in every measure, with p-values corrected for all of them."""
    rows = [
        (one, other, measure, compare(one.column(measure), other.column(measure)))
        for one, other in itertools.combinations(systems, 2)
        for measure in measures
    ]
    corrected = correct([comparison.p_value for *_, comparison in rows])
    return [
        ComparedPair(one.name, other.name, measure, comparison, p_value)
        for (one, other, measure, comparison), p_value in zip(rows, corrected, strict=True)
    ]


class QueryDifference(NamedTuple):
    """A query on which two systems differ: the measure of both."""

    query_id: str
    first: float
    second: float


def largest_differences(
    one: EvaluatedSystem, other: EvaluatedSystem, measure: str, count: int
) -> tuple[list[QueryDifference], list[QueryDifference]]:
    """Returns the queries on which `one` gains most over `other`, and those on which it loses most.

    Args:
        one: A system.
        other: Another one, on the same queries.
        measure: What is compared; of queries that are equal in it, first those that differ most
            in all measures together.
        count: At most so many of each.
    """

    def gain(query_id: str) -> tuple[float, float]:
        row, beside = one.values[query_id], other.values[query_id]
        return row[measure] - beside[measure], sum(row[name] - beside[name] for name in row)

    order = sorted(one.values, key=gain, reverse=True)
    parts = (
        [query_id for query_id in order[:count] if gain(query_id)[0] > 0],
        [query_id for query_id in order[::-1][:count] if gain(query_id)[0] < 0],
    )
    gains, losses = (
        [QueryDifference(q, one.values[q][measure], other.values[q][measure]) for q in part]
        for part in parts
    )
    return gains, losses
