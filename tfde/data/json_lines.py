"""JSON Lines, plain or gzip: a streaming reader that names the faulty line, and a writer."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from tfde.data.atomic import atomic_file
from tfde.errors import DataError

GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)


def open_binary(path: str | Path) -> BinaryIO:
    """Opens a file for reading, unpacked when its name ends in `.gz`."""
    path = Path(path)
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))


def gzip_error(path: str | Path, line: int | None, error: Exception) -> DataError:
    """Returns what to raise for one of `GZIP_ERRORS`."""
    return DataError(path, line, f"the gzip stream must be whole ({error}).")


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yields line number (from 1) and text, without the line end, of every line that is not blank.

    Raises:
        DataError: a line is not UTF-8; the gzip stream is truncated or damaged.
    """
    number = 0
    with open_binary(path) as file:
        lines = iter(file)
        while True:
            try:
                raw = next(lines)
            except StopIteration:
                return
            except GZIP_ERRORS as error:
                raise gzip_error(path, number + 1, error) from error
            number += 1
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    path, number, f"must be UTF-8 (byte {error.start} of the line is not).", raw
                ) from error
            if line.strip():
                yield number, line.rstrip("\r\n")


def json_fault(error: ValueError | RecursionError) -> str:
    """Returns in a few words why `json.loads` refused a text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deep" if isinstance(error, RecursionError) else "a number is too long"


def read_json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line number (from 1) and object of every line.

    Raises:
        DataError: a line is not UTF-8, not JSON or not an object; the gzip stream is damaged.
    """
    for number, line in read_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(path, number, f"must be JSON ({json_fault(error)}).", line) from error
        if not isinstance(record, dict):
            raise DataError(path, number, "must be a JSON object.", record)
        yield number, record


def string_field(
    path: str | Path, line: int, record: Mapping[str, Any], name: str, *, optional: bool = False
) -> str:
    """Returns a text of a record; `optional` allows it to be absent, null or empty.

    Raises:
        DataError: the field is missing, not a string, blank, or holds half a surrogate pair.
    """
    value = record.get(name)
    if value is None and optional:
        return ""
    if name not in record:
        raise DataError(path, line, f"field {name!r} is missing.", dict(record))
    if not isinstance(value, str):
        raise DataError(path, line, f"field {name!r} must be a string.", value)
    if not optional and not value.strip():
        raise DataError(path, line, f"field {name!r} must not be empty.", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            path, line, f"field {name!r} must be Unicode text (half a surrogate pair).", value
        ) from error
    return value


def id_field(path: str | Path, line: int, record: Mapping[str, Any], name: str) -> str:
    """Returns an id of a record.

    Raises:
        DataError: as `string_field`; or the id holds white space, which a TREC run cannot hold.
    """
    value = string_field(path, line, record, name)
    if value.split() != [value]:
        raise DataError(path, line, f"field {name!r} must not hold white space.", value)
    return value


@contextlib.contextmanager
def open_writer(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file for atomic writing, packed when its name ends in `.gz`.

    Equal content gives equal bytes: the gzip header holds neither time nor name.
    """
    with atomic_file(path) as temporary, open(temporary, "wb") as raw:
        if Path(path).suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield raw


def write_json_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes one object a line, atomically; packed when the name ends in `.gz`.

    Returns:
        The number of records.
    """
    count = 0
    with open_writer(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count
