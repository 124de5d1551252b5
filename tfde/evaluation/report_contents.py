"""What stands in a report, before it is a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfde.evaluation.compared_systems import ComparedPair, EvaluatedSystem
from tfde.evaluation.significance import Interval
from tfde.types import Document, Query


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
