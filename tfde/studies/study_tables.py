"""Tables of a study's results: means over seeds, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfde.errors import ConfigError
from tfde.evaluation.report import align_table
from tfde.storage.files import read_json
from tfde.studies.results import RESULTS_FILE, STUDY_FILE, read_results


class Group(NamedTuple):
    """The cells of one place in the grid: their values of the axes, and a record for each seed."""

    values: tuple[str, ...]
    records: list[dict[str, Any]]

    def mean(self, measure: str) -> float:
        """Returns the mean over seeds."""
        return statistics.fmean(self._values(measure))

    def spread(self, measure: str) -> float | None:
        """Returns the sample standard deviation over seeds; `None` with one seed."""
        values = self._values(measure)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, measure: str) -> list[float]:
        return [record["measures"][measure] for record in self.records]


class StudyResults(NamedTuple):
    """What is known of a study.

    Attributes:
        axes: Axis -> its values, in the order of the study.
        groups: Those that have a result, in the order of the axes.
        done: How many cells are done.
        total: How many there are.
        data: What cells are trained on and search: file -> its sha256, dataset directory -> those
            of its files.
    """

    axes: dict[str, list[str]]
    groups: list[Group]
    done: int
    total: int
    data: dict[str, Any] = {}


def load_results(output: str | Path) -> StudyResults:
    """Reads the results of a study's directory; those of another description are passed over.

    Raises:
        ConfigError: no study was begun there.
        CorruptError: its `study.json` is damaged.
        DataError: a line of `results.jsonl` is no result.
    """
    path = Path(output) / STUDY_FILE
    if not path.is_file():
        raise ConfigError(f"{output}: must hold {STUDY_FILE}, as `tfde study --run` writes it.")
    study = read_json(path)
    records = read_results(Path(output) / RESULTS_FILE)
    results = group_results(study["axes"], study["cells"], records)
    return results._replace(data=study.get("data", {}))


def group_results(
    axes: Mapping[str, Sequence[str]],
    cells: Sequence[Mapping[str, Any]],
    records: Iterable[dict[str, Any]],
) -> StudyResults:
    """Puts the results of a study's cells together by their place in the grid.

    Args:
        axes: Axis -> its values.
        cells: `axes`, `seed` and `hash` of each cell.
        records: Results, with the same fields; the first of each cell counts.
    """
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        known.setdefault(_place(axes, record), record)
    found = [known[place] for cell in cells if (place := _place(axes, cell)) in known]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in found:
        groups.setdefault(_values(axes, record), []).append(record)
    order = {axis: {value: row for row, value in enumerate(axes[axis])} for axis in axes}
    ordered = sorted(
        groups, key=lambda values: [order[a][v] for a, v in zip(axes, values, strict=True)]
    )
    return StudyResults(
        {axis: list(values) for axis, values in axes.items()},
        [Group(values, groups[values]) for values in ordered],
        len(found),
        len(cells),
    )


def format_results(results: StudyResults) -> str:
    """Returns a Markdown table: a row a place in the grid, a column a measure.

    Where there are several seeds it holds the mean and the sample standard deviation; the seconds
    are means, and the seconds of a shared stage stand in every row that begins with it.

    Raises:
        ConfigError: nothing is done yet.
    """
    if not results.groups:
        raise ConfigError("the study has no result yet.")
    records = [record for group in results.groups for record in group.records]
    measures = list(dict.fromkeys(name for record in records for name in record["measures"]))
    # The stages in their order: a run that has them all comes first.
    longest = sorted((record["seconds"] for record in records), key=len, reverse=True)
    clocks = list(dict.fromkeys(name for seconds in longest for name in seconds))
    lines = [[*results.axes, *measures, "seeds", *(f"{name}, s" for name in clocks)]]
    for group in results.groups:
        seconds = [_mean_seconds(group.records, name) for name in clocks]
        cells = [_cell(group, measure) for measure in measures]
        lines.append([*group.values, *cells, str(len(group.records)), *seconds])
    table = align_table(lines, text_columns=len(results.axes))
    return f"{table}\n\n{results.done} of {results.total} cells are done."


def format_origin(results: StudyResults, command: str) -> str:
    """Returns what a table is from: the command, the commit, the data, and the time it took."""
    # One result may stand in several places, and one training below several results.
    records = {r["hash"]: r for group in results.groups for r in group.records}.values()
    clocks: dict[Any, float] = {}
    for record in records:
        stages = record.get("stages", {})
        for name, value in record["seconds"].items():
            own = record["hash"] if name not in record.get("steps", {}) else stages.get(name, value)
            clocks[name, own] = value
    commits = list(dict.fromkeys(record.get("commit") or "none" for record in records))
    lines = [f"- command: `{command}`", f"- commit: {', '.join(commits)}"]
    for path, files in results.data.items():
        named = {"": files} if isinstance(files, str) else files
        sums = ", ".join(f"{name} {value[:12]}".strip() for name, value in named.items())
        lines.append(f"- data: {path} (sha256 {sums})")
    lines.append(f"- time: {sum(clocks.values()) / 3600:.2f} h")
    return "\n".join(lines)


def _place(axes: Iterable[str], record: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*_values(axes, record), record["seed"], record["hash"])


def _values(axes: Iterable[str], record: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(record["axes"].get(axis) for axis in axes)


def _cell(group: Group, measure: str) -> str:
    if any(measure not in record["measures"] for record in group.records):
        return "-"
    spread = group.spread(measure)
    return f"{group.mean(measure):.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _mean_seconds(records: Sequence[Mapping[str, Any]], name: str) -> str:
    seconds = [record["seconds"][name] for record in records if name in record["seconds"]]
    return f"{statistics.fmean(seconds):.0f}" if seconds else "-"
