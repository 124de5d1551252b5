"""Queries that stand in a file of their own, not in a dataset directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfde.data.metadata import QUERY_FIELDS, metadata_of
from tfde.errors import DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, read_json_lines, string_field
from tfde.types import Query


def read_queries(path: str | Path, intake: Intake | None = None) -> Iterator[Query]:
    """Streams queries from JSON Lines with `_id` and `text`, plain or packed.

    Args:
        path: The file.
        intake: Takes bad lines; `None` raises the first.

    Raises:
        DataError: not JSON, a missing or empty field, an id with white space, or an id twice.
    """
    intake = intake or Intake()
    lines: dict[str, int] = {}
    for line, record in read_json_lines(path, intake):
        query = intake.take(_query, path, line, record, lines)
        if query is not None:
            lines[query.query_id] = line
            yield query


def _query(path: str | Path, line: int, record: dict[str, Any], lines: dict[str, int]) -> Query:
    query_id = id_field(path, line, record, "_id")
    if query_id in lines:
        rule = f"field '_id' must be unique; line {lines[query_id]} has it too."
        raise DataError(path, line, rule, query_id)
    text = string_field(path, line, record, "text")
    return Query(query_id, text, metadata_of(path, line, record, QUERY_FIELDS))
