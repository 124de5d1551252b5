"""What records say beyond id, title and text: read, written and shown in one place."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tfde.errors import DataError
from tfde.types import CONTEXT, Document, Metadata, Query

_FIELD = "metadata"
DOCUMENT_FIELDS = ("_id", "title", "text")
QUERY_FIELDS = ("_id", "text")


def metadata_of(
    path: str | Path, line: int | None, record: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any] | None:
    """Returns what a record says beyond its known fields; `None` where that is nothing.

    That is what its field `metadata` holds (BEIR's form), and every other field beside it.

    Args:
        path: The file.
        line: The record's line in it.
        record: The record.
        known: Its other fields.

    Raises:
        DataError: a name stands in `metadata` and beside it; a value is none that JSON knows.
    """
    others = {name: value for name, value in record.items() if name not in known}
    nested = others.get(_FIELD)
    if nested is None:
        others.pop(_FIELD, None)
    elif isinstance(nested, Mapping):
        del others[_FIELD]
        for name in others.keys() & nested.keys():
            rule = f"field {name!r} must not stand in {_FIELD!r} too."
            raise DataError(path, line, rule, nested[name])
        others |= nested
    if not others:
        return None
    check_metadata(path, line, others)
    return others


def check_metadata(path: str | Path, line: int | None, metadata: Metadata | None) -> None:
    """Refuses metadata that JSON cannot hold.

    Raises:
        DataError: it holds a number that is not finite, half a surrogate pair, or an object of
            Python that is nothing in JSON.
    """
    if metadata is None:
        return
    try:
        metadata_json(metadata).encode()
    except (TypeError, ValueError, RecursionError) as error:
        rule = "metadata must hold what JSON can: texts, finite numbers, true, false, null, lists."
        raise DataError(path, line, rule, dict(metadata)) from error


def document_record(document: Document) -> dict[str, Any]:
    """Returns a document as a line of `corpus.jsonl` holds it."""
    record = {"_id": document.doc_id, "title": document.title, "text": document.text}
    return record | {_FIELD: document.metadata} if document.metadata else record


def document_texts(document: Document) -> dict[str, str]:
    """Returns what models may read of a document, as a file of pairs holds it."""
    texts = {"title": document.title, "text": document.text}
    return texts if document.context is None else texts | {CONTEXT: document.context}


def query_record(query: Query) -> dict[str, Any]:
    """Returns a query as a line of `queries.jsonl` holds it."""
    record = {"_id": query.query_id, "text": query.text}
    return record | {_FIELD: query.metadata} if query.metadata else record


def metadata_json(metadata: Metadata | None) -> str:
    """Returns metadata as a text, "" where there is none."""
    return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False) if metadata else ""


def metadata_line(metadata: Metadata | None) -> str:
    """Returns metadata for people to read, in one line."""

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return "; ".join(f"{name}: {shown(value)}" for name, value in (metadata or {}).items())
