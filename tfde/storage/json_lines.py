"""JSON Lines, plain or packed: a streaming reader that names the faulty line, and a writer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfde.errors import DataError
from tfde.storage.compressed import open_writer, read_lines
from tfde.storage.intake import Intake
from tfde.storage.json_file import json_fault


def read_json_lines(
    path: str | Path, intake: Intake | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line number (from 1) and object of every line.

    Raises:
        DataError: a line is not UTF-8, not JSON or not an object; the packed stream is damaged.
    """
    intake = intake or Intake()
    for number, line in read_lines(path, intake):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            intake.bad(DataError(path, number, f"must be JSON ({json_fault(error)}).", line))
            continue
        if not isinstance(record, dict):
            intake.bad(DataError(path, number, "must be a JSON object.", record))
            continue
        yield number, record


def string_field(
    path: str | Path,
    line: int | None,
    record: Mapping[str, Any],
    name: str,
    *,
    optional: bool = False,
    blank: bool = False,
) -> str:
    """Returns a text of a record.

    Args:
        path: The file.
        line: The record's line in it.
        record: The record.
        name: The field.
        optional: Whether it may be absent, null or blank.
        blank: Whether it may be blank.

    Raises:
        DataError: the field is missing, not a string, blank, or holds half a surrogate pair.
    """
    value = record.get(name)
    if value is None and optional:
        return ""
    if name not in record:
        raise DataError(path, line, f"field {name!r} is missing.", dict(record))
    if value is None:
        rule = f"field {name!r} must be a string; it is null, so leave the record out."
        raise DataError(path, line, rule)
    if not isinstance(value, str):
        raise DataError(path, line, f"field {name!r} must be a string.", value)
    if not (optional or blank) and not value.strip():
        raise DataError(path, line, f"field {name!r} must not be empty.", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            path, line, f"field {name!r} must be Unicode text (half a surrogate pair).", value
        ) from error
    return value


def strings_field(
    path: str | Path, line: int | None, record: Mapping[str, Any], name: str
) -> tuple[str, ...]:
    """Returns a list of texts of a record; it may be empty.

    Raises:
        DataError: the field is missing, not a list, or an item breaks a rule of `string_field`.
    """
    values = list_field(path, line, record, name)
    return tuple(string_field(path, line, {name: value}, name) for value in values)


def list_field(
    path: str | Path, line: int | None, record: Mapping[str, Any], name: str
) -> list[Any]:
    """Returns a list of a record.

    Raises:
        DataError: the field is missing or not a list.
    """
    if name not in record:
        raise DataError(path, line, f"field {name!r} is missing.", dict(record))
    values = record[name]
    if not isinstance(values, list):
        raise DataError(path, line, f"field {name!r} must be a list.", values)
    return values


def id_field(path: str | Path, line: int | None, record: Mapping[str, Any], name: str) -> str:
    """Returns an id of a record.

    Raises:
        DataError: as `string_field`; or the id holds white space, which a TREC run cannot hold.
    """
    value = string_field(path, line, record, name)
    if value.split() != [value]:
        raise DataError(path, line, f"field {name!r} must not hold white space.", value)
    return value


def write_json_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes one object a line, atomically; packed when the name ends in `.gz` or `.zst`.

    Returns:
        The number of records.
    """
    count = 0
    with open_writer(path) as file:
        for record in records:
            file.write(json_line(record))
            count += 1
    return count


def json_line(record: Mapping[str, Any]) -> bytes:
    """Returns a record as one line of JSON Lines."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
