"""Several systems on the same queries: intervals, differences, and the queries that differ most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfde.data.ranking import first_documents
from tfde.evaluation.significance import Comparison, Interval, compare, correct, mean_interval
from tfde.types import Run


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
