"""Tables of text: rows by the names in the header, quoted as CSV or not at all."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfde.data.compressed import raw_lines, read_lines
from tfde.data.intake import Intake
from tfde.errors import DataError

# Python's own limit, 128 KiB, is less than a long document.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))


def read_table(
    path: str | Path, intake: Intake, *, delimiter: str, quoted: bool
) -> Iterator[dict[str, str]]:
    """Yields the rows of a table as `{column: cell}`; the first line names the columns.

    `intake.line` is the line on which a row ends.

    Args:
        path: The file, plain or packed.
        intake: The place, and what becomes of bad rows.
        delimiter: What stands between cells.
        quoted: Whether cells may be quoted with `"`, as CSV does it; else every `"` is text.

    Raises:
        DataError: a row has more or fewer cells than the header, a quote is not closed, a line
            is not UTF-8, the packed stream is damaged, there is no header.
    """
    rows = _quoted_rows(path, intake, delimiter) if quoted else _plain_rows(path, intake, delimiter)
    header: Sequence[str] | None = None
    for row in rows:
        if header is None:
            header = row
        elif len(row) != len(header):
            rule = f"a row must have {len(header)} cells, as the header; it has {len(row)}."
            intake.bad(DataError(path, intake.line, rule, row))
        else:
            yield dict(zip(header, row, strict=True))
    if header is None:
        intake.bad(DataError(path, None, "must begin with a line that names the columns."))


def require_columns(path: str | Path, row: dict[str, str], columns: Sequence[str]) -> None:
    """Refuses a table that lacks a column.

    Raises:
        DataError: a column is missing.
    """
    for column in columns:
        if column not in row:
            raise DataError(path, 1, f"column {column!r} is missing.", " ".join(row))


def _plain_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    for _, line in read_lines(path, intake):
        yield line.split(delimiter)


def _quoted_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    lines = (line for _, line in raw_lines(path, intake))
    # Strict: else a quote that is never closed swallows the rest of the file.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            intake.bad(DataError(path, intake.line, f"must be a table in CSV's quoting ({error})."))
            continue
        if row:
            yield row
