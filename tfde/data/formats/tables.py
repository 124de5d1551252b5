"""Tables of text: rows by the names in the header, quoted as CSV or not at all."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfde.data.compressed import SUFFIXES, raw_lines, read_lines
from tfde.data.intake import Intake
from tfde.data.json_lines import read_json_lines
from tfde.errors import ConfigError, DataError
from tfde.extras import require_extra

# Python's own limit, 128 KiB, is less than a long document.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))

_DELIMITERS = {",": "commas", "\t": "tabs"}


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
            is not UTF-8, the packed stream is damaged, there is no header, another delimiter
            stands in it.
    """
    rows = _quoted_rows(path, intake, delimiter) if quoted else _plain_rows(path, intake, delimiter)
    header: Sequence[str] | None = None
    for row in rows:
        if header is None:
            header = row
            _refuse_other_delimiter(path, row, delimiter)
        elif len(row) != len(header):
            rule = _cells_rule(len(header), len(row))
            intake.bad(DataError(path, intake.line, rule, row))
        else:
            yield dict(zip(header, row, strict=True))
    if header is None:
        intake.bad(DataError(path, None, "must begin with a line that names the columns."))


def _refuse_other_delimiter(path: str | Path, header: Sequence[str], delimiter: str) -> None:
    """Refuses a header of one cell that holds what spreadsheets elsewhere put between cells."""
    if len(header) == 1 and any(other in header[0] for other in ";\t|,"):
        rule = f"cells must be separated by {_DELIMITERS.get(delimiter, repr(delimiter))}."
        raise DataError(path, 1, rule, header[0])


def require_columns(path: str | Path, row: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Refuses a table that lacks a column.

    Raises:
        DataError: a column is missing.
    """
    for column in columns:
        if column not in row:
            raise DataError(path, 1, f"column {column!r} is missing.", " ".join(row))


def ending(path: Path) -> str:
    """Returns what a file's name ends in, such as `.csv`, packed or not; "" for nothing."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in SUFFIXES]
    return suffixes[-1] if suffixes else ""


def read_rows(path: Path, intake: Intake) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a table as `{column: cell}`; the name's ending says how they are written.

    `.jsonl` has an object a line, `.csv` and `.tsv` are quoted as CSV is, `.parquet` needs pyarrow;
    `intake.line` is then the number of a row.

    Raises:
        ConfigError: another ending; parquet without pyarrow.
        DataError: a row is damaged.
    """
    kind = ending(path)
    if kind == ".jsonl":
        return (record for _, record in read_json_lines(path, intake))
    if kind in (".csv", ".tsv"):
        delimiter = "," if kind == ".csv" else "\t"
        return read_table(path, intake, delimiter=delimiter, quoted=True)
    if path.suffix == ".parquet":
        return _parquet_rows(path, intake)
    raise ConfigError(
        "`input` must be a .jsonl, .csv, .tsv (each also .gz or .zst) or .parquet file."
        f" Received: {path.name!r}"
    )


def _parquet_rows(path: Path, intake: Intake) -> Iterator[Mapping[str, Any]]:
    require_extra("parquet", f"{path}: a parquet file")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    intake.at(path)
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    intake.at(path, number)  # a row, where other files have lines
                    yield row
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        fault = str(error).splitlines()[0]
        intake.bad(DataError(path, None, f"must be a whole parquet file ({fault})."))


def _plain_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    for _, line in read_lines(path, intake):
        yield line.split(delimiter)


def _quoted_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    """Yields rows; a quote that is not closed costs the line it stands on, not all it swallows."""
    lines = raw_lines(path, intake)
    again: deque[tuple[int, str]] = deque()  # swallowed by a bad row, to be read as rows
    taken: list[tuple[int, str]] = []  # the lines of the row at work

    def feed() -> Iterator[str]:
        while (item := again.popleft() if again else next(lines, None)) is not None:
            taken.append(item)
            intake.at(path, item[0])
            yield item[1]

    width = None
    while True:
        rule = ""
        try:
            for row in csv.reader(feed(), delimiter=delimiter, strict=True):
                if width is not None and row and len(row) != width and len(taken) > 1:
                    rule = f"{_cells_rule(width, len(row))} It goes on to line {taken[-1][0]}."
                    break
                taken.clear()
                if row:
                    width = len(row) if width is None else width
                    yield row
            else:
                return
        except csv.Error as error:
            rule = f"must be a table in CSV's quoting ({error})."
        (line, text), *swallowed = taken
        intake.bad(DataError(path, line, rule, text))
        again.extendleft(reversed(swallowed))
        taken.clear()


def _cells_rule(wanted: int, found: int) -> str:
    return f"a row must have {wanted} cells, as the header; it has {found}."
