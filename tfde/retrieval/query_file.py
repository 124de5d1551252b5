"""Queries that stand in a file of their own, not in a dataset directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tfde.data.json_lines import id_field, read_json_lines, string_field
from tfde.errors import DataError
from tfde.types import Query


def read_queries(path: str | Path) -> Iterator[Query]:
    """Streams queries from JSON Lines with `_id` and `text`, plain or `.gz`.

    Raises:
        DataError: not JSON, a missing or empty field, an id with white space, or an id twice.
    """
    lines: dict[str, int] = {}
    for line, record in read_json_lines(path):
        query_id = id_field(path, line, record, "_id")
        if query_id in lines:
            rule = f"field '_id' must be unique; line {lines[query_id]} has it too."
            raise DataError(path, line, rule, query_id)
        lines[query_id] = line
        yield Query(query_id, string_field(path, line, record, "text"))
