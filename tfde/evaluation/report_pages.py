"""A report as a page: Markdown, and HTML of it that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from markdown_it import MarkdownIt

from tfde.data.metadata import metadata_line
from tfde.evaluation.report import align_table
from tfde.evaluation.significance import (
    CONFIDENCE,
    RESAMPLES,
    ComparedPair,
    EvaluatedSystem,
    Interval,
)
from tfde.types import Document, Query

_LONGEST_TEXT = 400  # characters of a query or document that are shown
_SURE = 1 - CONFIDENCE
_NOTE_ON_INTERVALS = (
    f"In brackets: the {100 * CONFIDENCE:.0f} % interval of the mean, by bootstrap over queries."
)
_NOTE_ON_PAIRS = (
    f"p: paired randomization test over queries ({RESAMPLES:,} draws); corrected: by Benjamini and"
    f" Hochberg for all rows of this table. Of the differences marked with *, at most"
    f" {100 * _SURE:.0f} % are expected to be chance."
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
svg { max-width: 100%; height: auto; }
details { border: 1px solid #ddd; border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } li p { margin: .3rem 0; }
"""


class Chart(NamedTuple):
    """A picture.

    Attributes:
        name: Of its file.
        heading: What stands above it.
        svg: What is drawn.
        lines: Its numbers as a table, the header first; a line's first cell is its name.
    """

    name: str
    heading: str
    svg: str
    lines: Sequence[Sequence[str]] = ()


class ShownDocument(NamedTuple):
    """A document of an example, and its rank in both systems (`None`: not found)."""

    document: Document
    relevant: bool
    first_rank: int | None
    second_rank: int | None


class Example(NamedTuple):
    """A query on which two systems differ, with the documents that show why."""

    query: Query
    first: float
    second: float
    documents: list[ShownDocument]


class ExamplePair(NamedTuple):
    """Where one system gains most over another, and where it loses most."""

    first: str
    second: str
    gains: list[Example]
    losses: list[Example]


class Report(NamedTuple):
    """All that stands in a report.

    Attributes:
        about: What was measured: name -> text.
        origin: How, and from what exactly: name -> text.
        measures: The measures.
        leading: The one of them by which queries are compared.
        systems: The systems in their order.
        intervals: System -> measure -> its mean over queries, with the interval.
        pairs: Every two of them in every measure.
        charts: The pictures.
        examples: Of every two systems.
    """

    about: dict[str, str]
    origin: dict[str, str]
    measures: Sequence[str]
    leading: str
    systems: Sequence[EvaluatedSystem]
    intervals: dict[str, dict[str, Interval]]
    pairs: list[ComparedPair]
    charts: list[Chart]
    examples: list[ExamplePair]


def markdown_page(report: Report) -> str:
    """Returns the page as Markdown, whose pictures are `charts/NAME.svg`."""
    lines = ["# Retrieval, measured", "", *_list(report.about), ""]
    lines += ["<details><summary>Command, date, checksums</summary>", ""]
    lines += [*_list(report.origin), "", "</details>"]
    lines += ["", "## Measures", "", align_table(_measure_lines(report), text_columns=1)]
    lines += ["", _NOTE_ON_INTERVALS]
    if report.pairs:
        lines += ["", "## Comparisons", "", align_table(_pair_lines(report), text_columns=3)]
        lines += ["", _NOTE_ON_PAIRS]
    for chart in report.charts:
        lines += ["", f"## {chart.heading}", "", f"![{chart.heading}](charts/{chart.name}.svg)"]
        if chart.lines:
            lines += ["", align_table(_named(chart.lines), text_columns=1)]
    if report.examples:
        lines += ["", "## Gains and losses"]
    for pair in report.examples:
        for heading, examples in _parts(pair, report.leading):
            lines += ["", f"### {_plain(heading)}", *([] if examples else ["", "Nowhere."])]
            for example in examples:
                lines += ["", f"<details><summary>{_summary(example)}</summary>", ""]
                for shown in example.documents:
                    mark = "**relevant**" if shown.relevant else "not relevant"
                    where = _plain(_where(shown, pair))
                    lines.append(f"- {mark}; {where}<br>{_plain(_text(shown))}")
                lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def html_page(report: Report) -> str:
    """Returns the Markdown page as one HTML file, its pictures in it."""
    body = MarkdownIt("commonmark").enable("table").render(markdown_page(report))
    for chart in report.charts:
        picture = f'<img src="charts/{chart.name}.svg" alt="{chart.heading}" />'
        body = body.replace(f"<p>{picture}</p>", f"<figure>{chart.svg}</figure>")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Retrieval on {escape(report.about['data set'])}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _list(about: Mapping[str, str]) -> list[str]:
    return [f"- {_plain(name)}: {_plain(text)}" for name, text in about.items()]


def _summary(example: Example) -> str:
    line = f"{_cut(example.query.text)} ({example.query.query_id}: {_values(example)})"
    return escape(" ".join(line.split()), quote=False)  # a blank line would end the HTML


def _measure_lines(report: Report) -> list[list[str]]:
    lines = [["system", *report.measures, "seconds"]]
    for system in report.systems:
        cells = [_interval(report.intervals[system.name][name]) for name in report.measures]
        seconds = "-" if system.seconds is None else f"{system.seconds:.1f}"
        lines.append([_plain(system.name), *cells, seconds])
    return lines


def _pair_lines(report: Report) -> list[list[str]]:
    lines = [["system", "less", "measure", "difference", "p", "corrected", "better on", "worse on"]]
    for pair in report.pairs:
        found = pair.comparison
        mark = "*" if pair.corrected < _SURE else ""
        lines.append(
            [
                _plain(pair.first),
                _plain(pair.second),
                pair.measure,
                _interval(found.difference, sign="+") + mark,
                f"{found.p_value:.4f}",
                f"{pair.corrected:.4f}",
                str(found.gains),
                str(found.losses),
            ]
        )
    return lines


def _named(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[_plain(line[0]), *line[1:]] for line in lines]


def _interval(value: Interval, *, sign: str = "") -> str:
    numbers = (f"{number:{sign}.4f}" for number in value)
    mean, low, high = numbers
    return f"{mean} [{low}, {high}]"


def _parts(pair: ExamplePair, measure: str) -> list[tuple[str, list[Example]]]:
    return [
        (f"{measure}: where {pair.first} gains most over {pair.second}", pair.gains),
        (f"{measure}: where {pair.first} loses most to {pair.second}", pair.losses),
    ]


def _values(example: Example) -> str:
    return f"{example.first:.4f}, the other {example.second:.4f}"


def _where(shown: ShownDocument, pair: ExamplePair) -> str:
    ranks = [
        f"{name}: {'not found' if rank is None else f'rank {rank}'}"
        for name, rank in ((pair.first, shown.first_rank), (pair.second, shown.second_rank))
    ]
    return f"{shown.document.doc_id}; {'; '.join(ranks)}"


def _text(shown: ShownDocument) -> str:
    title, text = shown.document.title, shown.document.text
    whole = f"{title}. {text}" if title else text
    known = metadata_line(shown.document.metadata)
    return f"{_cut(whole)} ({_cut(known)})" if known else _cut(whole)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def _plain(text: str) -> str:
    """Returns a text as one line in which nothing is Markdown or HTML."""
    line = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#&~" else c for c in line)
