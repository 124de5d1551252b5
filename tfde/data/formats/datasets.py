"""Sets of the library `datasets` on this machine: one table of pairs, or three tables as BEIR's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfde.data.formats import columns as pair_columns
from tfde.data.formats.csv_rows import read_rows
from tfde.data.formats.records import Judgement, Record, Source
from tfde.data.metadata import metadata_of
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, string_field
from tfde.types import Document, Query

# What a column may be called in the tables of each role, where `columns` does not say it.
_KNOWN_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "corpus": {
        "id": ("_id", "id", "doc_id", "docid", "corpus-id", "corpus_id", "passage_id", "pid"),
        "title": ("title",),
        "document": ("text", "document", "passage", "contents", "body"),
    },
    "queries": {
        "query_id": ("_id", "id", "query_id", "query-id", "qid"),
        "query": ("text", "query", "question"),
    },
    "qrels": {
        "query_id": ("query-id", "query_id", "qid"),
        "id": ("corpus-id", "corpus_id", "doc_id", "docid", "pid"),
        "label": ("score", "relevance", "label"),
    },
}
_OPTIONAL = ("title", "label")


def read(
    sources: Sequence[Source], intake: Intake, *, columns: Sequence[str] | None = None
) -> Iterator[Record]:
    """Yields the records of tables of the role `rows`, or of `corpus`, `queries` and `qrels`.

    Rows are read as `tfde.data.formats.columns` does it. In the other tables ids may be whole
    numbers, a title may be absent, and a judgement without a score is 1.

    Args:
        sources: The files.
        intake: What becomes of bad rows.
        columns: `KIND=NAME` for each column that has another name.

    Raises:
        ConfigError: rows beside the other roles; `columns` in another form.
        DataError: a missing column; a cell of a wrong type; a score that is no whole number.
    """
    rows = [source for source in sources if source.role == "rows"]
    if rows and len(rows) < len(sources):
        raise ConfigError(
            "`input`: rows hold queries and documents, so they stand alone."
            f" Received: {', '.join(dict.fromkeys(source.role for source in sources))}"
        )
    if rows:
        yield from pair_columns.read(rows, intake, columns=columns)
        return
    names = pair_columns.column_names(columns)
    for role in _KNOWN_NAMES:
        for source in sources:
            if source.role != role:
                continue
            for row in read_rows(source.path, intake):
                record = intake.take(_record, source, intake.line, row, names)
                if record is not None:
                    yield record


def understood(source: Source, columns: Sequence[str] | None = None) -> str:
    """Returns in one line which columns of a table are read as what, and which are not.

    Raises:
        ConfigError: as `read`.
    """
    if source.role == "rows":
        return pair_columns.understood(source, columns)
    intake, names = Intake(), pair_columns.column_names(columns)
    try:
        row = next(iter(read_rows(source.path, intake)))
        found = _columns(source, intake.line, row, names)
    except (DataError, StopIteration):
        return ""
    parts = [f"{kind} from {name!r}" for kind, name in found.items()]
    rest = [name for name in row if name not in found.values()]
    if rest:
        what = "not read:" if source.role == "qrels" else "metadata from"
        parts.append(f"{what} {', '.join(map(repr, rest))}")
    return "; ".join(parts)


def _columns(
    source: Source, line: int | None, row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    found = {}
    for kind, known in _KNOWN_NAMES[source.role].items():
        if not names[kind]:  # as in `label=`
            continue
        # A name that was given may be that of another of the three tables.
        given = names[kind] if names[kind] != pair_columns.KNOWN_NAMES[kind] else ()
        name = next((name for name in (*given, *known) if name in row), None)
        if name is not None:
            found[kind] = name
        elif kind not in _OPTIONAL:
            rule = f"column {known[0]!r} (or {', '.join((*given, *known[1:]))}) is missing."
            raise DataError(source.path, line, rule, " ".join(row))
    return found


def _record(
    source: Source, line: int | None, row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> Record:
    path = source.path
    found = _columns(source, line, row, names)

    def identity(kind: str) -> str:
        value = row[found[kind]]
        cell = {found[kind]: str(value) if type(value) is int else value}
        return id_field(path, line, cell, found[kind])

    if source.role == "queries":
        text = string_field(path, line, row, found["query"])
        return Query(identity("query_id"), text, metadata_of(path, line, row, found.values()))
    if source.role == "corpus":
        title, text = (
            string_field(path, line, row, found[kind], optional=True) if kind in found else ""
            for kind in ("title", "document")
        )
        metadata = metadata_of(path, line, row, found.values())
        return Document(identity("id"), title, text, metadata)
    relevance = _whole_number(row[found["label"]]) if "label" in found else 1
    if relevance is None:
        rule = f"column {found['label']!r} must hold whole numbers."
        raise DataError(path, line, rule, row[found["label"]])
    return Judgement(source.split, identity("query_id"), identity("id"), relevance)


def _whole_number(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
