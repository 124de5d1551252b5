"""Writes docs/benchmarks.md from the JSON files of the benchmarks.

    python benchmarks/report.py --results build/benchmarks --output docs/benchmarks.md

Takes what is there: a benchmark that has not run has no row. `make bench` runs all of them first.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from report_rows import SECTIONS, Bound, Question, Section

HEADER = (
    "| question | ratio (lowest-highest) | tfde | peer | check, tfde / peer | bar | reached |"
    " command |",
    "|---|---|---:|---:|---|---:|---|---:|",
)


def row(question: Question, found: dict, command: int) -> str:
    """Returns one line of a table; the command is one of the numbered list at the end."""
    check, holds = question.check(found)
    sides = ("ours", "theirs")
    if question.unit == "ms":
        speeds = [f"{1000 * found[f'{side}_s']:.2f} ms" for side in sides]
    elif question.unit == "ms a query":
        speeds = [f"{found[f'{side}_ms_per_query']:.3f} ms" for side in sides]
    else:
        speeds = [f"{found[f'{side}_per_s']:g} {question.unit}" for side in sides]
    ratio = f"{found['ratio']:.2f} ({found['ratio_lowest']:.2f}-{found['ratio_highest']:.2f})"
    if found.get("apart"):
        ratio += ", one after the other"
    bar, met = "-", "-"
    if question.bar is not None:
        bar = f"{question.bar:g}"
        met = "yes" if found["ratio"] >= question.bar and holds else "**no**"
    return _line(question.text, ratio, *speeds, check, bar, met, str(command))


def bound_row(bound: Bound, found: dict, command: int) -> str:
    """Returns one line of a table, of what has no peer."""
    median, lowest, highest = (found[name] for name in bound.figures)
    figure = f"{median:.2f} {bound.unit} ({lowest:.2f}-{highest:.2f})"
    most, met = "-", "-"
    if bound.most is not None:
        most = f"at most {bound.most:g} {bound.unit}"
        met = "yes" if median <= bound.most else "**no**"
    return _line(bound.text, figure, "-", "-", "", most, met, str(command))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def section_lines(
    section: Section, results: dict[str, dict], numbers: dict[str, int]
) -> Iterator[str]:
    """Yields a section, or nothing if none of its benchmarks has run."""
    rows, left_out = [], []
    for question in section.questions():
        found = question.found(results)
        if "ratio" in found:
            rows.append(row(question, found, numbers[question.file]))
        elif "left_out" in found:
            left_out.append(f"- {question.text}: {found['left_out']}.")
    for bound in section.bounds():
        if found := bound.found(results):
            rows.append(bound_row(bound, found, numbers[bound.file]))
    if rows or left_out:
        yield from ("", f"## {section.title}", section.about)
    if rows:
        yield from ("", *HEADER, *rows)
    if left_out:
        yield from ("", "Not measured:", "", *left_out)
    if more := list(section.more(results)):
        yield from ("", *more)


def document(results: dict[str, dict]) -> str:
    """Returns docs/benchmarks.md.

    Args:
        results: The content of the JSON files by name.
    """
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. tfde and the peer work in turns on the same weights, texts and"
        " cores; a ratio above 1 says that tfde is faster: the median of the pairs of measurements,"
        ' with the lowest and the highest. "Bar" is the ratio to reach.',
    ]
    numbers = {name: number for number, name in enumerate(results, start=1)}
    for section in SECTIONS:
        lines += section_lines(section, results, numbers)
    lines += ["", "## Commands", ""]
    lines += [f"{numbers[name]}. `{result['command']}`" for name, result in results.items()]
    lines += ["", "## Machine and versions", ""]
    machines: dict[str, dict[str, str]] = {}
    for result in results.values():
        machine = f"{result['cpu']}, {result['cores']} cores, Python {result['python']}"
        machine += f", commit {result['commit']}" if result.get("commit") else ""
        machines.setdefault(machine, {}).update(result["versions"])
    for machine, versions in machines.items():
        names = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
        lines.append(f"- {machine}: {names}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the results and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of JSON files")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    rows = (row for part in SECTIONS for row in (*part.questions(), *part.bounds()))
    paths = {name: args.results / f"{name}.json" for name in dict.fromkeys(r.file for r in rows)}
    found = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }
    args.output.write_text(document(found), encoding="utf-8")


if __name__ == "__main__":
    main()
