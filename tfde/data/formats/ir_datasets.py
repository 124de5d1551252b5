"""Sets that the library `ir_datasets` knows, read by its own parsers from its own folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfde.data.formats.records import Answers, Judgement, Record, Source, without_repeats
from tfde.data.metadata import metadata_of
from tfde.environment import require_extra
from tfde.errors import ConfigError, DataError, require
from tfde.storage.intake import Intake
from tfde.types import Document, Query

_KINDS = ("query", "document", "title")
_NOT_READ = ("docpairs", "scoreddocs", "qlogs")


def read(
    sources: Sequence[Source], intake: Intake, *, columns: Sequence[str] | None = None
) -> Iterator[Record]:
    """Yields documents, then queries with their answers, then judgements of sets.

    A set's id stands where other formats have a path. The text of a record is what the library
    calls its default text; a title at its beginning is the document's title. Sets that share their
    documents (`beir/scifact/train`, `beir/scifact/test`) yield them once. The library looks for
    its files in `~/.ir_datasets` or `IR_DATASETS_HOME`, and fetches what is not there.

    Args:
        sources: The ids.
        intake: The place (a record's number stands for its line), and what becomes of bad records.
        columns: `query=FIELD`, `document=FIELD`, `title=FIELD` read these fields of the records.

    Raises:
        MissingExtraError: the library is not installed.
        ConfigError: an unknown id, `columns` in another form, or no field of this name.
        DataError: the library cannot read its files.
    """
    sets = [(source, _load(source)) for source in sources]
    fields = _fields(columns)
    corpora: list[Any] = []
    for source, dataset in sets:
        if dataset.has_docs() and dataset.docs_handler() not in corpora:
            corpora.append(dataset.docs_handler())
            for record in _numbered(dataset.docs_iter, source, intake):
                yield _document(source, intake, record, fields)
    yield from without_repeats(_queries(sets, intake, fields))
    for source, dataset in sets:
        if dataset.has_qrels():
            for judged in _numbered(dataset.qrels_iter, source, intake):
                yield Judgement(source.split, judged.query_id, judged.doc_id, judged.relevance)


def understood(source: Source, columns: Sequence[str] | None = None) -> str:
    """Returns in one line which parts and fields of a set are read, and which are not.

    Raises:
        MissingExtraError, ConfigError: as `read`.
    """
    dataset, fields = _load(source), _fields(columns)
    parts, rest = [], []
    for part, kind in (("docs", "document"), ("queries", "query")):
        if dataset.has(part):
            names = list(getattr(dataset, f"{part}_cls")()._fields)
            parts.append(f"{kind} from {fields.get(kind, 'its default text')}")
            rest += [f"{part}.{name}" for name in names if name not in _KNOWN_FIELDS]
    if rest:
        parts.append(f"metadata from {', '.join(rest)}")
    unread = [part for part in _NOT_READ if dataset.has(part)]
    if unread:
        parts.append(f"not read: {', '.join(unread)}")
    return "; ".join(parts)


_LONG = 40  # characters; a shorter value may stand in a text by chance
_KNOWN_FIELDS = ("doc_id", "query_id", "title", "text", "answers")


def _load(source: Source) -> Any:
    require_extra("ir_datasets", "the format ir_datasets")
    import ir_datasets

    try:
        return ir_datasets.load(str(source.path))
    except KeyError as error:
        raise ConfigError(
            "`input` must be an id of ir_datasets, such as beir/scifact/test"
            f" (ir-datasets.com lists them). Received: {str(source.path)!r}"
        ) from error


def _fields(columns: Sequence[str] | None) -> dict[str, str]:
    fields = {}
    for column in columns or ():
        kind, equals, name = column.partition("=")
        rule = f"KIND=FIELD with a kind of {', '.join(_KINDS)}"
        require(bool(equals and name) and kind in _KINDS, "columns", rule, column)
        fields[kind] = name
    return fields


def _numbered(iterate: Any, source: Source, intake: Intake) -> Iterator[Any]:
    """Yields what the library reads; `intake.line` is the number of the record."""
    intake.at(source.path)
    number = 0
    try:
        records: Iterable[Any] = iterate()
        for number, record in enumerate(records, start=1):
            intake.at(source.path, number)
            yield record
    except Exception as error:  # a parser or a download of its own: it may raise anything
        fault = (str(error).splitlines() or [""])[0]
        rule = f"ir_datasets must be able to read it ({type(error).__name__}: {fault})."
        raise DataError(source.path, number + 1, rule) from error


def _queries(
    sets: Sequence[tuple[Source, Any]], intake: Intake, fields: dict[str, str]
) -> Iterator[Record]:
    for source, dataset in sets:
        if not dataset.has_queries():
            continue
        for record in _numbered(dataset.queries_iter, source, intake):
            text = _text(source, record, fields.get("query"))
            yield Query(record.query_id, text, _metadata(source, intake, record, text))
            answers = getattr(record, "answers", None)
            if isinstance(answers, tuple | list) and answers:
                yield Answers(record.query_id, tuple(map(str, answers)))


def _document(source: Source, intake: Intake, record: Any, fields: dict[str, str]) -> Document:
    text = _text(source, record, fields.get("document"))
    metadata = _metadata(source, intake, record, text)
    title = getattr(record, "title", None)
    if "title" in fields:
        title = _text(source, record, fields["title"])
    elif title is not None and "document" not in fields:
        # Most default texts are f"{title} {text}"; in another the title is part of the text.
        found = text.startswith(title)
        text = text[len(title) :].removeprefix(" ") if found else text
        title = title if found else ""
    return Document(record.doc_id, title or "", text, metadata)


def _metadata(source: Source, intake: Intake, record: Any, text: str) -> dict[str, Any] | None:
    """Returns the other fields of a record, but what its text holds already, as JSON has them."""
    others = {}
    for name, value in record._asdict().items():
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if name not in _KNOWN_FIELDS and not (isinstance(value, str) and _holds(text, value)):
            others[name] = json.loads(json.dumps(value, default=str))
    return metadata_of(source.path, intake.line, others, ())


def _holds(text: str, value: str) -> bool:
    """Whether a value is part of a text, and does not stand in it by chance ("art")."""
    if len(value) > _LONG:
        return value in text
    place = re.escape(value)
    return re.search(rf"(?:\A|\n){place}(?:\s|\Z)|\s{place}\Z", text) is not None


def _text(source: Source, record: Any, field: str | None) -> str:
    if field is None and hasattr(record, "default_text"):
        return str(record.default_text())
    if field is None or field not in record._fields:
        raise ConfigError(
            f"{source.path}: `columns` must name a field of {type(record).__name__}:"
            f" {', '.join(record._fields)}. Received: {field!r}"
        )
    return str(getattr(record, field))
