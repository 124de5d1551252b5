"""The demo's table: each system with its interval, and which differences are no chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfde.evaluation.measures import mean_values, per_query
from tfde.evaluation.report import align_table
from tfde.evaluation.significance import Comparison, compare, correct, mean_interval
from tfde.types import Qrels, Run

MEASURES = ("nDCG@10", "P@1", "RR", "R@100")
LEADING = MEASURES[0]
SIGNIFICANT = 0.05


class Difference(NamedTuple):
    """One system beside another in nDCG@10; `p_value` is corrected for all that are compared."""

    better: str
    other: str
    comparison: Comparison
    p_value: float

    @property
    def verdict(self) -> str:
        """Returns `better`, `worse`, or `no difference` where chance alone may have made it."""
        if self.p_value >= SIGNIFICANT:
            return "no difference"
        return "better" if self.comparison.difference.mean > 0 else "worse"


class Measured(NamedTuple):
    """What was measured of systems on the same queries."""

    means: dict[str, dict[str, float]]
    table: str
    differences: list[Difference]


def measure(runs: Mapping[str, Run], qrels: Qrels, compared: Sequence[tuple[str, str]]) -> Measured:
    """Measures runs and compares them in nDCG@10.

    Args:
        runs: System -> run, in the order of the table's rows.
        qrels: Judgements of all queries.
        compared: Pairs of systems, the one that should be better first.
    """
    rows = {name: per_query(run, qrels, MEASURES) for name, run in runs.items()}
    leading = {name: [row[LEADING] for row in found.values()] for name, found in rows.items()}
    means = {name: mean_values(found) for name, found in rows.items()}
    lines = [["system", LEADING, "95 % interval", *MEASURES[1:]]]
    for name, values in leading.items():
        interval = mean_interval(values)
        others = [f"{means[name][measure]:.3f}" for measure in MEASURES[1:]]
        between = f"{interval.low:.3f} to {interval.high:.3f}"
        lines.append([name, f"{interval.mean:.3f}", between, *others])
    comparisons = [compare(leading[one], leading[other]) for one, other in compared]
    p_values = correct([comparison.p_value for comparison in comparisons])
    differences = [
        Difference(one, other, comparison, p_value)
        for (one, other), comparison, p_value in zip(compared, comparisons, p_values, strict=True)
    ]
    return Measured(means, align_table(lines, text_columns=1), differences)


def format_differences(differences: Sequence[Difference]) -> str:
    """Returns a table of differences in nDCG@10, each with its interval and p-value."""
    lines = [["system", "beside", f"{LEADING} more", "95 % interval", "p", ""]]
    for better, other, comparison, p_value in differences:
        found = comparison.difference
        between = f"{found.low:+.3f} to {found.high:+.3f}"
        lines.append([better, other, f"{found.mean:+.3f}", between, f"{p_value:.4f}", ""])
    for line, difference in zip(lines[1:], differences, strict=True):
        line[-1] = difference.verdict
    return align_table(lines, text_columns=2)
