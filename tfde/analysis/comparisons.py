"""Which cells of a study differ from a baseline, and how sure that is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.analysis.results import read_by_query
from tfde.analysis.tables import Group, StudyResults
from tfde.data.atomic import atomic_file
from tfde.errors import ConfigError, require
from tfde.evaluation.report import align_table
from tfde.evaluation.significance import Comparison, compare, correct


class GridComparison(NamedTuple):
    """A place of the grid beside the one that differs from it in one axis alone.

    Attributes:
        values: Of the axes.
        baseline: The value of the axis in the other place.
        measure: What is compared.
        comparison: The difference from the baseline; of each query, the mean over seeds.
        corrected: The p-value, corrected for all comparisons that were made with it.
    """

    values: tuple[str, ...]
    baseline: str
    measure: str
    comparison: Comparison
    corrected: float


def compare_with(
    output: str | Path, results: StudyResults, axis: str, baseline: str
) -> list[GridComparison]:
    """Compares every place of the grid with the one that has `baseline` in place of its value.

    Queries are the sample: a query's value is its mean over the seeds of a place, so what is
    tested is the mean of these models, on other queries of the kind. Places that were measured on
    other queries than their baseline, or whose baseline is not done, are left out.

    Args:
        output: Directory of the study.
        results: What is known of it.
        axis: The axis.
        baseline: Its value.

    Raises:
        ConfigError: no such axis or value; nothing can be compared; results are from before
            measures of queries were kept.
    """
    require(axis in results.axes, "against", f"one of the axes {', '.join(results.axes)}", axis)
    known = results.axes[axis]
    require(baseline in known, "against", f"{axis}= one of {', '.join(known)}", baseline)
    place = list(results.axes).index(axis)
    of_baseline = {
        _without(group.values, place): group
        for group in results.groups
        if group.values[place] == baseline
    }
    rows = []
    for group in results.groups:
        other = of_baseline.get(_without(group.values, place))
        if other is None or group.values[place] == baseline:
            continue
        values, others = (_mean_by_query(Path(output), one) for one in (group, other))
        for measure in values:
            if measure in others and values[measure].keys() == others[measure].keys():
                pair = [(value, others[measure][q]) for q, value in values[measure].items()]
                found = compare(*zip(*pair, strict=True))
                rows.append((group.values, measure, found))
    if not rows:
        raise ConfigError(f"nothing can be compared with {axis}={baseline} yet.")
    corrected = correct([comparison.p_value for *_, comparison in rows])
    return [
        GridComparison(values, baseline, measure, comparison, p_value)
        for (values, measure, comparison), p_value in zip(rows, corrected, strict=True)
    ]


def format_comparisons(
    results: StudyResults, axis: str, comparisons: Sequence[GridComparison]
) -> str:
    """Returns a Markdown table: a row a comparison."""
    titles = [name if name != axis else f"{axis}, against" for name in results.axes]
    lines = [[*titles, "measure", "difference", "interval", "p", "corrected"]]
    for row in comparisons:
        mean, low, high = row.comparison.difference
        values = [
            value if name != axis else f"{value}, {row.baseline}"
            for name, value in zip(results.axes, row.values, strict=True)
        ]
        numbers = [f"{mean:+.4f}", f"[{low:+.4f}, {high:+.4f}]"]
        p_values = [f"{row.comparison.p_value:.4f}", f"{row.corrected:.4f}"]
        lines.append([*values, row.measure, *numbers, *p_values])
    table = align_table(lines, text_columns=len(results.axes) + 1)
    return (
        f"{table}\n\nDifferences of the means over seeds with their 95 % intervals (bootstrap over"
        " queries); p by paired randomization over queries, corrected by Benjamini and Hochberg"
        f" for these {len(comparisons)} comparisons."
    )


def write_csv(
    path: str | Path, results: StudyResults, comparisons: Sequence[GridComparison] = ()
) -> None:
    """Writes a row for each place of the grid and measure, whole or not at all.

    Columns: the axes, measure, mean, standard deviation over seeds (empty with one), seeds; with
    comparisons also against, difference, low, high, p, corrected.

    Args:
        path: The file.
        results: Of a study.
        comparisons: Of its places with a baseline.
    """
    compared = {(row.values, row.measure): row for row in comparisons}
    names = [*results.axes, "measure", "mean", "spread", "seeds"]
    if comparisons:
        names += ["against", "difference", "low", "high", "p", "corrected"]
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for group in results.groups:
            for measure in group.records[0]["measures"]:
                spread = group.spread(measure)
                row: list[Any] = [*group.values, measure, group.mean(measure)]
                row += ["" if spread is None else spread, len(group.records)]
                found = compared.get((group.values, measure))
                if found is not None:
                    row += [found.baseline, *found.comparison.difference]
                    row += [found.comparison.p_value, found.corrected]
                writer.writerow(row + [""] * (len(names) - len(row)))


def _without(values: tuple[str, ...], place: int) -> tuple[str, ...]:
    return values[:place] + values[place + 1 :]


def _mean_by_query(output: Path, group: Group) -> dict[str, dict[str, float]]:
    """Returns measure -> query -> mean over the seeds of a place."""
    seeds = [read_by_query(output, record["hash"]) for record in group.records]
    return {
        measure: {query: float(np.mean([one[measure][query] for one in seeds])) for query in values}
        for measure, values in seeds[0].items()
    }
