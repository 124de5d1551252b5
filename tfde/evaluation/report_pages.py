"""A report as a page: HTML that needs nothing but itself, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tfde.data.metadata import metadata_line
from tfde.evaluation.compared_systems import ComparedPair, EvaluatedSystem
from tfde.evaluation.report import align_table
from tfde.evaluation.significance import CONFIDENCE, RESAMPLES, Interval
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
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; } .wide { overflow-x: auto; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right;
  white-space: nowrap; }
th.text, td.text { text-align: left; } .sure { font-weight: 600; }
.about td { text-align: left; white-space: normal; font-size: .9rem; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
details { border: 1px solid #ddd; border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } .document { margin: .6rem 0 .6rem 1rem; }
.ranks { font-size: .85rem; color: #555; }
.relevant { border-left: 3px solid #2a7; padding-left: .6rem; }
nav a { margin-right: 1rem; } .note { font-size: .9rem; color: #555; }
"""


def html_page(report: Report) -> str:
    """Returns the page as one HTML file."""
    parts = [
        "<h1>Retrieval, measured</h1>",
        _html_about(report),
        "<nav>"
        + "".join(
            f'<a href="#{name}">{heading}</a>'
            for name, heading in (
                ("measures", "Measures"),
                *([("comparisons", "Comparisons")] if report.pairs else []),
                *((chart.name, chart.heading) for chart in report.charts),
                *([("examples", "Gains and losses")] if report.examples else []),
            )
        )
        + "</nav>",
        '<h2 id="measures">Measures</h2>',
        _html_table(_measure_lines(report), text_columns=1),
        f'<p class="note">{_NOTE_ON_INTERVALS}</p>',
    ]
    if report.pairs:
        parts += [
            '<h2 id="comparisons">Comparisons</h2>',
            _html_table(_pair_lines(report), text_columns=3),
            f'<p class="note">{_NOTE_ON_PAIRS}</p>',
        ]
    parts += map(_html_chart, report.charts)
    if report.examples:
        parts.append('<h2 id="examples">Gains and losses</h2>')
        parts += (_html_examples(pair, report.leading) for pair in report.examples)
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Retrieval on {escape(report.about['data set'])}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def markdown_page(report: Report) -> str:
    """Returns the page as Markdown, whose pictures are `charts/NAME.svg`."""
    lines = ["# Retrieval, measured", ""]
    about = report.about | report.origin
    lines += [f"- {name}: {text}" for name, text in about.items()]
    lines += ["", "## Measures", "", align_table(_measure_lines(report), text_columns=1)]
    lines += ["", _NOTE_ON_INTERVALS]
    if report.pairs:
        lines += ["", "## Comparisons", "", align_table(_pair_lines(report), text_columns=3)]
        lines += ["", _NOTE_ON_PAIRS]
    for chart in report.charts:
        lines += ["", f"## {chart.heading}", "", f"![{chart.heading}](charts/{chart.name}.svg)"]
        if chart.lines:
            lines += ["", align_table(chart.lines, text_columns=1)]
    if report.examples:
        lines += ["", "## Gains and losses"]
    for pair in report.examples:
        for heading, examples in _parts(pair, report.leading):
            lines += ["", f"### {heading}"]
            for example in examples:
                query = _plain(_cut(example.query.text))
                name = _plain(example.query.query_id)
                lines += ["", f"**{query}** ({name}: {_values(example)})"]
                for shown in example.documents:
                    where = _plain(_where(shown, pair))
                    lines.append(f"- {where}: {_plain(_text(shown))}")
    return "\n".join(lines) + "\n"


def _measure_lines(report: Report) -> list[list[str]]:
    lines = [["system", *report.measures, "seconds"]]
    for system in report.systems:
        cells = [_interval(report.intervals[system.name][name]) for name in report.measures]
        seconds = "-" if system.seconds is None else f"{system.seconds:.1f}"
        lines.append([system.name, *cells, seconds])
    return lines


def _pair_lines(report: Report) -> list[list[str]]:
    lines = [["system", "less", "measure", "difference", "p", "corrected", "better on", "worse on"]]
    for pair in report.pairs:
        found = pair.comparison
        mark = "*" if pair.corrected < _SURE else ""
        lines.append(
            [
                pair.first,
                pair.second,
                pair.measure,
                _interval(found.difference, sign="+") + mark,
                f"{found.p_value:.4f}",
                f"{pair.corrected:.4f}",
                str(found.gains),
                str(found.losses),
            ]
        )
    return lines


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
    kind = "relevant" if shown.relevant else "not relevant"
    return f"{shown.document.doc_id}; {kind}; {'; '.join(ranks)}"


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
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in line)


def _html_about(report: Report) -> str:
    about, origin = (
        "".join(
            f'<tr><th class="text">{escape(name)}</th><td>{escape(text)}</td></tr>'
            for name, text in part.items()
        )
        for part in (report.about, report.origin)
    )
    return (
        f'<table class="about">{about}</table>\n<details><summary>Command, date, checksums'
        f'</summary><table class="about">{origin}</table></details>'
    )


def _html_table(lines: Sequence[Sequence[str]], *, text_columns: int) -> str:
    rows = []
    for number, line in enumerate(lines):
        tag = "td" if number else "th"
        sure = ' class="sure"' if any(n.endswith("*") for n in line[text_columns:]) else ""
        kinds = [' class="text"' if column < text_columns else "" for column in range(len(line))]
        cells = (
            f"<{tag}{kind}>{escape(cell) if kind else escape(cell).replace(' [', '<br>[')}</{tag}>"
            for kind, cell in zip(kinds, line, strict=True)
        )
        rows.append(f"<tr{sure}>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _html_chart(chart: Chart) -> str:
    table = _html_table(chart.lines, text_columns=1) if chart.lines else ""
    return f'<h2 id="{chart.name}">{chart.heading}</h2>\n<figure>{chart.svg}</figure>{table}'


def _html_examples(pair: ExamplePair, measure: str) -> str:
    parts = []
    for heading, examples in _parts(pair, measure):
        parts.append(f"<h3>{escape(heading)}</h3>")
        if not examples:
            parts.append("<p>Nowhere.</p>")
        for example in examples:
            documents = "".join(_html_document(shown, pair) for shown in example.documents)
            parts.append(
                f"<details><summary>{escape(_cut(example.query.text))}"
                f' <span class="ranks">{escape(example.query.query_id)}: {_values(example)}</span>'
                f"</summary>{documents}</details>"
            )
    return "\n".join(parts)


def _html_document(shown: ShownDocument, pair: ExamplePair) -> str:
    kind = "document relevant" if shown.relevant else "document"
    where, text = escape(_where(shown, pair)), escape(_text(shown))
    return f'<div class="{kind}"><div class="ranks">{where}</div>{text}</div>'


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
