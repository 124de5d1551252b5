"""Which cells of a study differ from a baseline, and how sure that is."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.errors import ConfigError, require
from tfde.evaluation.report import align_table
from tfde.evaluation.significance import CONFIDENCE, Comparison, compare, correct
from tfde.storage.atomic import atomic_file
from tfde.studies.results import RESULTS_FILE, has_by_query, read_by_query
from tfde.studies.study_tables import StudyResults

logger = logging.getLogger("tfde")


class GridComparison(NamedTuple):
    """A place of the grid beside the one that differs from it in one axis alone.

    Attributes:
        values: Of the axes.
        baseline: The value of the axis in the other place.
        measure: What is compared.
        comparison: The difference from the baseline; of each query, the mean over seeds.
        corrected: The p-value, corrected for all comparisons that were made with it.
        baseline_mean: Of the measure, in the other place.
        seeds: How many there are of both places; only these count.
    """

    values: tuple[str, ...]
    baseline: str
    measure: str
    comparison: Comparison
    corrected: float
    baseline_mean: float
    seeds: int


def compare_with(
    output: str | Path, results: StudyResults, axis: str, baseline: str
) -> list[GridComparison]:
    """Compares every place of the grid with the one that has `baseline` in place of its value.

    Queries are the sample: a query's value is its mean over the seeds of a place, so what is
    tested is the mean of these models, on other queries of the kind. Places that were measured on
    other queries than their baseline, whose baseline is not done, or which are one and the same
    result as it, are left out. Only the seeds that both places have count, with the measures of
    each query; how many have none is logged.

    Args:
        output: Directory of the study.
        results: What is known of it.
        axis: The axis.
        baseline: Its value.

    Raises:
        ConfigError: no such axis or value; nothing can be compared.
    """
    check_baseline(results.axes, axis, baseline)
    place = list(results.axes).index(axis)
    of_baseline = {
        without_axis(group.values, place): group
        for group in results.groups
        if group.values[place] == baseline
    }
    hashes = {record["hash"] for group in results.groups for record in group.records}
    known = {key for key in hashes if has_by_query(output, key)}
    if hashes - known:
        logger.warning(
            "%d of %d results have no measures of each query and are not compared; without their"
            " lines in %s the study does them again",
            len(hashes - known),
            len(hashes),
            RESULTS_FILE,
        )
    rows = []
    for group in results.groups:
        other = of_baseline.get(without_axis(group.values, place))
        if other is None or group.values[place] == baseline:
            continue
        keys, other_keys = (
            {r["seed"]: r["hash"] for r in one.records if r["hash"] in known}
            for one in (group, other)
        )
        seeds = sorted(keys.keys() & other_keys.keys())
        if not seeds or keys == other_keys:
            continue
        values, others = (
            _mean_by_query(Path(output), [one[seed] for seed in seeds])
            for one in (keys, other_keys)
        )
        for measure in values:
            if measure in others and values[measure].keys() == others[measure].keys():
                base = [others[measure][query] for query in values[measure]]
                found = compare(list(values[measure].values()), base)
                rows.append((group.values, measure, found, float(np.mean(base)), len(seeds)))
    if not rows:
        raise ConfigError(f"nothing can be compared with {axis}={baseline} yet.")
    corrected = correct([found.p_value for _, _, found, _, _ in rows])
    return [
        GridComparison(group, baseline, measure, found, p_value, mean, count)
        for (group, measure, found, mean, count), p_value in zip(rows, corrected, strict=True)
    ]


def check_baseline(axes: Mapping[str, Sequence[str]], axis: str, baseline: str) -> None:
    """Refuses what is no axis, or no value of it.

    Raises:
        ConfigError: it is none.
    """
    require(axis in axes, "against", f"one of the axes {', '.join(axes)}", axis)
    known = axes[axis]
    require(baseline in known, "against", f"{axis}= one of {', '.join(known)}", baseline)


def without_axis(values: tuple[str, ...], place: int) -> tuple[str, ...]:
    """Returns a place in the rest of the grid."""
    return values[:place] + values[place + 1 :]


def format_comparisons(
    results: StudyResults, axis: str, comparisons: Sequence[GridComparison]
) -> str:
    """Returns a Markdown table: a row a comparison."""
    titles = [name if name != axis else f"{axis}, against" for name in results.axes]
    lines = [[*titles, "measure", "difference", "interval", "p", "corrected", "seeds"]]
    for row in comparisons:
        mean, low, high = row.comparison.difference
        values = [
            value if name != axis else f"{value}, {row.baseline}"
            for name, value in zip(results.axes, row.values, strict=True)
        ]
        numbers = [f"{mean:+.4f}", f"[{low:+.4f}, {high:+.4f}]"]
        p_values = [f"{row.comparison.p_value:.4f}", f"{row.corrected:.4f}"]
        lines.append([*values, row.measure, *numbers, *p_values, str(row.seeds)])
    table = align_table(lines, text_columns=len(results.axes) + 1)
    return (
        f"{table}\n\nDifferences of the means over the seeds that both places have, with their"
        f" {CONFIDENCE:.0%} intervals (bootstrap over queries); p by paired randomization over"
        " queries, corrected by Benjamini and Hochberg for these"
        f" {len(comparisons)} comparisons."
    )


def write_csv(
    path: str | Path, results: StudyResults, comparisons: Sequence[GridComparison] = ()
) -> None:
    """Writes a row for each place of the grid and measure, whole or not at all.

    Columns: the axes, measure, mean, standard deviation over seeds (empty with one), seeds; with
    comparisons also against, difference, low, high, p, corrected, and how many seeds both have.

    Args:
        path: The file.
        results: Of a study.
        comparisons: Of its places with a baseline.
    """
    compared = {(row.values, row.measure): row for row in comparisons}
    names = [*results.axes, "measure", "mean", "spread", "seeds"]
    if comparisons:
        names += ["against", "difference", "low", "high", "p", "corrected", "common_seeds"]
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
                    row += [found.comparison.p_value, found.corrected, found.seeds]
                writer.writerow(row + [""] * (len(names) - len(row)))


def _mean_by_query(output: Path, keys: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns measure -> query -> mean over the results of a place's seeds."""
    seeds = [read_by_query(output, key) for key in keys]
    return {
        measure: {query: float(np.mean([one[measure][query] for one in seeds])) for query in values}
        for measure, values in seeds[0].items()
    }
