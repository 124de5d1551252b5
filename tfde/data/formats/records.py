"""What readers of formats yield beside `Document` and `Query`, and what they are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tfde.data.ids import KnownIds
from tfde.types import Document, Query


class Source(NamedTuple):
    """A file (or folder) to read: which part of the format it is, and its split, if it has one."""

    role: str
    path: Path
    split: str = ""


class Judgement(NamedTuple):
    """How relevant a document is to a query, in a split."""

    split: str
    query_id: str
    doc_id: str
    relevance: int


class Answers(NamedTuple):
    """The accepted answers to a question."""

    query_id: str
    texts: tuple[str, ...]


class TrainingPair(NamedTuple):
    """A query with one relevant document and given negatives, named by their ids."""

    split: str
    query: Query
    positive: str
    negatives: tuple[str, ...]


class LabelledPair(NamedTuple):
    """Two sentences and what was said of them: a class or a number."""

    split: str
    first: str
    second: str
    label: str


Record = Document | Query | Judgement | Answers | TrainingPair


def without_repeats(records: Iterable[Record]) -> Iterator[Record]:
    """Leaves out documents, queries, judgements and answers that came before.

    For formats that write a text out wherever it is used; of two with one id the first counts.
    Judgements that contradict each other stay, so that whoever reads on refuses them. Memory holds
    the ids' keys.
    """
    known = KnownIds()
    for record in records:
        if isinstance(record, Document):
            name = f"d {record.doc_id}"
        elif isinstance(record, Query):
            name = f"q {record.query_id}"
        elif isinstance(record, Judgement):
            name = f"j {record.split} {record.query_id} {record.doc_id}"
        elif isinstance(record, Answers):
            name = f"a {record.query_id}"
        else:
            yield record
            continue
        is_new = known.add(name)
        if isinstance(record, Judgement):
            is_new |= known.add(f"{name} {record.relevance}")
        if is_new:
            yield record
