"""Figures of a study's results: a measure along an axis, and gains over a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfde.environment import require_extra
from tfde.errors import ConfigError, require
from tfde.evaluation.report_charts import plain_text
from tfde.evaluation.significance import Interval
from tfde.storage.atomic import atomic_file
from tfde.studies.comparisons import GridComparison, without_axis
from tfde.studies.study_tables import Group, StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_results(results: StudyResults, path: str | Path, *, measure: str) -> None:
    """Draws a measure: along the last axis, a line a value of the last but one, a panel a rest.

    Bars show the sample standard deviation over seeds. Where nothing was trained is a baseline,
    dashed: one point across its panel, a panel of one line across the others.

    Args:
        results: Of a study with at least two axes.
        path: The image; its suffix says the kind.
        measure: One of the results' measures.

    Raises:
        ConfigError: fewer axes, an unknown measure, or nothing is done yet.
        ImportError: matplotlib is not installed.
    """
    names = list(results.axes)
    if len(names) < 2:
        raise ConfigError(f"a figure needs at least two axes. Received: {', '.join(names)}")
    _check_measure(results, measure)
    require_extra("figures", "a figure")
    from matplotlib.figure import Figure

    # Cells of other measures have no place in it.
    groups = [g for g in results.groups if all(measure in r["measures"] for r in g.records)]
    ticks = results.axes[names[-1]]
    baselines = _untrained_lines(groups)
    rests = dict.fromkeys(group.values[:-2] for group in groups)
    panels = [rest for rest in rests if rest not in baselines]
    canvas = Figure(figsize=(4.5 * len(panels), 4.8), layout="constrained")
    axes = canvas.subplots(1, len(panels), sharey=True, squeeze=False)
    for panel, plot in zip(panels, axes[0], strict=True):
        for number, line in enumerate(results.axes[names[-2]]):
            points = [g for g in groups if g.values[:-1] == (*panel, line)]
            if len(points) == 1 and not _is_trained(points[0]):
                plot.axhline(
                    points[0].mean(measure), label=plain_text(line), linestyle="--", color="gray"
                )
            elif points:
                plot.errorbar(
                    [ticks.index(group.values[-1]) for group in points],
                    [group.mean(measure) for group in points],
                    yerr=[group.spread(measure) or 0.0 for group in points],
                    label=plain_text(line),
                    color=f"C{number}",  # the same in all panels
                    marker="o",
                    capsize=3,
                )
        for name, points in baselines.items():
            plot.plot(
                [ticks.index(group.values[-1]) for group in points],
                [group.mean(measure) for group in points],
                label=plain_text(", ".join(name)),
                linestyle="--",
                color="gray",
            )
        plot.set_title(plain_text(", ".join(panel)))
        plot.set_xticks(range(len(ticks)), map(plain_text, ticks))
        plot.set_xlabel(plain_text(names[-1]))
        plot.grid(alpha=0.3)
        # Below the axes, where it hides no point.
        plot.legend(
            title=plain_text(names[-2]), loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3
        )
    axes[0][0].set_ylabel(measure)
    _save(canvas, path)


def draw_gains(
    results: StudyResults,
    comparisons: Sequence[GridComparison],
    path: str | Path,
    *,
    axis: str,
    measure: str,
) -> None:
    """Draws what each value of an axis gains over the baseline, in percent of the baseline.

    A group of bars for each place in the rest of the grid; the whiskers are the intervals of the
    differences over queries.

    Args:
        results: Of a study.
        comparisons: Of its places with a baseline along `axis`.
        path: The image; its suffix says the kind.
        axis: Axis of the baseline.
        measure: One of the results' measures.

    Raises:
        ConfigError: an unknown measure, or its baseline is 0 everywhere.
        ImportError: matplotlib is not installed.

    Source: Dong et al. 2022, figure 3.
    """
    gains = relative_gains(results, comparisons, axis=axis, measure=measure)
    require_extra("figures", "a figure")
    from matplotlib.figure import Figure

    rests = list(dict.fromkeys(rest for rest, _ in gains))
    bars = [value for value in results.axes[axis] if any(value == v for _, v in gains)]
    canvas = Figure(
        figsize=(max(5.0, 1.8 + 0.45 * len(rests) * len(bars)), 4.2), layout="constrained"
    )
    plot = canvas.subplots()
    width = 0.8 / len(bars)
    for number, value in enumerate(bars):
        found = {rests.index(rest): gain for (rest, v), gain in gains.items() if v == value}
        drawn = plot.bar(
            [place + (number - (len(bars) - 1) / 2) * width for place in found],
            [gain.mean for gain in found.values()],
            width,
            yerr=[
                [gain.mean - gain.low for gain in found.values()],
                [gain.high - gain.mean for gain in found.values()],
            ],
            capsize=2,
            label=plain_text(value),
        )
        # A grid's largest gain decides the scale; the others are to be read all the same.
        plot.bar_label(drawn, fmt="%.1f", padding=2, fontsize=7)
    plot.axhline(0.0, color="black", linewidth=0.8)
    plot.set_xticks(range(len(rests)), [plain_text(", ".join(rest)) for rest in rests])
    plot.set_ylabel(plain_text(f"gain in {measure} over {comparisons[0].baseline}, %"))
    plot.grid(axis="y", alpha=0.3)
    canvas.legend(title=plain_text(axis), loc="outside lower center", ncols=5)
    _save(canvas, path)


def relative_gains(
    results: StudyResults, comparisons: Sequence[GridComparison], *, axis: str, measure: str
) -> dict[tuple[tuple[str, ...], str], Interval]:
    """Returns (rest of the grid, value of the axis) -> its gain in percent of the baseline.

    Places whose baseline is 0 are left out; the interval is that of the difference.

    Raises:
        ConfigError: an unknown measure, or its baseline is 0 everywhere.
    """
    _check_measure(results, measure)
    place = list(results.axes).index(axis)
    gains = {
        (without_axis(row.values, place), row.values[place]): Interval(
            *(100 * part / row.baseline_mean for part in row.comparison.difference)
        )
        for row in comparisons
        if row.measure == measure and row.baseline_mean > 0
    }
    if not gains:
        raise ConfigError(f"`measure` must be one whose baseline is above 0. Received: {measure!r}")
    return gains


def _untrained_lines(groups: Sequence[Group]) -> dict[tuple[str, ...], list[Group]]:
    """Returns the panels of one line for which nothing was trained, unless all are."""
    panels: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        panels.setdefault(group.values[:-2], []).append(group)
    found = {
        rest: points
        for rest, points in panels.items()
        if len({group.values[-2] for group in points}) == 1 and not any(map(_is_trained, points))
    }
    return found if len(found) < len(panels) else {}


def _check_measure(results: StudyResults, measure: str) -> None:
    known = sorted({name for g in results.groups for r in g.records for name in r["measures"]})
    if not known:
        raise ConfigError("the study has no result yet.")
    require(measure in known, "measure", f"one of {', '.join(known)}", measure)


def _save(canvas: Figure, path: str | Path) -> None:
    kinds = [f".{kind}" for kind in canvas.canvas.get_supported_filetypes()]
    require(Path(path).suffix in kinds, "figure", f"a file {', '.join(sorted(kinds))}", str(path))
    with atomic_file(path) as temporary:
        canvas.savefig(temporary, dpi=150, bbox_inches="tight")


def _is_trained(group: Group) -> bool:
    return any(set(record["seconds"]) - {"evaluate"} for record in group.records)
