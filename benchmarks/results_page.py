"""Writes the tables of docs/results.md anew from the files in docs/studies and docs/figures.

    python benchmarks/results_page.py [--check]

A table stands between `<!-- table: SOURCE -->` and `<!-- end -->`. SOURCE is

    study NAME          the results of pipelines/studies/NAME.yaml, docs/studies/NAME
    compared NAME AXIS [MEASURE ...]
                        its differences from a value of the axis, all or in these measures,
                        docs/studies/NAME/against_AXIS.csv
    matching TABLE      of benchmarks/matching_study.py as of 0.1.0, docs/figures/matching.jsonl
    matching_paper TABLE
                        of benchmarks/matching_study.py, docs/figures/matching_paper.jsonl
    zero_shot MEASURE   of benchmarks/zero_shot.py, docs/figures/zero_shot.jsonl
    home_and_away HOME  of benchmarks/home_and_away.py, docs/figures/home_and_away_HOME.jsonl
    encoders DTYPE      of benchmarks/encoder_sizes.py, docs/figures/encoders_DTYPE.json

docs/studies/NAME is a study's directory without its models, and what `tfde study --csv` writes; two
are from before there were `study.json` and `queries`. The others are what the programs write.
`--check` writes nothing, and fails where the page says something else.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import re
import sys
from pathlib import Path

import home_and_away
import yaml
import zero_shot
from matching_tables import tables

from tfde.evaluation.report import align_table
from tfde.studies.results import RESULTS_FILE, STUDY_FILE, read_results
from tfde.studies.study_tables import format_origin, format_results, group_results, load_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
FOLDED = "<details><summary>Command, commit, data, time</summary>\n\n{}\n\n</details>"
_TABLE = re.compile(r"(<!-- table: (\w+) ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def study(name: str) -> str:
    """Returns the table of a study: means over seeds, with their spread; and its origin."""
    directory = ROOT / "docs" / "studies" / name
    run = ROOT / "pipelines" / "studies" / f"{name}.yaml"
    if not (directory / STUDY_FILE).exists():
        described = yaml.safe_load(run.read_text("utf-8"))["axes"]
        axes = {axis: [str(value) for value in values] for axis, values in described.items()}
        records = read_results(directory / RESULTS_FILE)
        return format_results(group_results(axes, records, records)).partition("\n\n")[0]
    results = load_results(directory)
    command = f"tfde study --run pipelines/studies/{name}.yaml --output studies/{name}"
    origin = format_origin(results, command)
    return f"{format_results(results)}\n\n{FOLDED.format(origin)}"


def compared(source: str) -> str:
    """Returns the table of a study's differences, and how sure they are."""
    name, axis, *measures = source.split()
    with (ROOT / "docs" / "studies" / name / f"against_{axis}.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["against"]]
    axes = list(rows[0])[: list(rows[0]).index("measure")]
    lines = [[*axes, "against", "measure", "difference", "interval", "p", "corrected", "seeds"]]
    for row in rows:
        if measures and row["measure"] not in measures:
            continue
        difference, low, high = (float(row[name]) for name in ("difference", "low", "high"))
        values = [*(row[axis] for axis in axes), row["against"], row["measure"]]
        numbers = [f"{difference:+.4f}", f"[{low:+.4f}, {high:+.4f}]"]
        numbers += [f"{float(row[name]):.4f}" for name in ("p", "corrected")]
        lines.append([*values, *numbers, row["common_seeds"]])
    table = align_table(lines, text_columns=len(axes) + 2)
    return (
        f"{table}\n\nMeans over the seeds that both have; 95% intervals by bootstrap over queries;"
        " p by paired randomization over queries, corrected by Benjamini and Hochberg for"
        f" {_counted(len(rows), len(lines) - 1)}."
    )


def _counted(made: int, shown: int) -> str:
    more = "" if made == shown else f", {made - shown} in measures that are not shown among them"
    return f"{made} comparisons{more}"


def figures(name: str) -> list[dict]:
    """Returns the lines of a file of docs/figures."""
    lines = (ROOT / "docs" / "figures" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def matching(title: str, name: str = "matching.jsonl") -> str:
    """Returns one of the tables of the study of matching."""
    return tables(figures(name))[title]


def other_sets(measure: str) -> str:
    """Returns a measure of models on sets they were not trained on: a row a set."""
    return zero_shot.table(figures("zero_shot.jsonl"), measure)


def gains(home: str) -> str:
    """Returns what trainings on a set won there and lost elsewhere: a row a way."""
    return home_and_away.table(figures(f"home_and_away_{home}.jsonl"))


def encoders(dtypes: str) -> str:
    """Returns what questions and documents cost by the size of the encoder."""
    lines: dict[str, list[str]] = {"encoder": ["encoder", "parameters"]}
    for dtype in dtypes.split():
        file = ROOT / "docs" / "figures" / f"encoders_{dtype}.json"
        about = json.loads(file.read_text("utf-8"))
        first = next(iter(about["rows"].values()))
        columns = {"question_ms": "a question, ms", "tokens_128_ms": "128 tokens, ms"}
        columns = {key: title for key, title in columns.items() if key in first}
        lines["encoder"] += [f"{title}, {dtype}" for title in (*columns.values(), "documents/s")]
        for name, row in about["rows"].items():
            line = lines.setdefault(name, [name, f"{row['parameters'] / 1e6:.1f} M"])
            line += [*(f"{row[key]:.1f}" for key in columns), f"{row['documents_per_s']:,.0f}"]
    return align_table(list(lines.values()), text_columns=1)


def generate(page: str) -> str:
    """Returns the page with its tables made anew."""
    sources = {
        "study": study,
        "compared": compared,
        "matching": matching,
        "matching_paper": functools.partial(matching, name="matching_paper.jsonl"),
        "zero_shot": other_sets,
        "home_and_away": gains,
        "encoders": encoders,
    }
    return _TABLE.sub(lambda m: f"{m[1]}{sources[m[2]](m[3])}\n{m[4]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    before = PAGE.read_text("utf-8")
    after = generate(before)
    if parser.parse_args().check:
        sys.exit(None if after == before else f"{PAGE}: run benchmarks/results_page.py")
    PAGE.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
