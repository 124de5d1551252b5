"""Tables as rows: one file, quoted as CSV or not at all, or a folder of such."""

from __future__ import annotations

import contextlib
import csv
import datetime
import decimal
import itertools
import json
import math
import re
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfde.data.formats.json_array import begins_array, read_json_array
from tfde.environment import require_extra
from tfde.errors import ConfigError, DataError, TfdeError, first_line
from tfde.storage.compressed import SUFFIXES, raw_lines, read_lines
from tfde.storage.intake import Intake
from tfde.storage.json_file import read_json_file, refuse_pointer
from tfde.storage.json_lines import read_json_lines

# Python's own limit, 128 KiB, is less than a long document.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_OTHERS = ";\t|,"
_DELIMITERS = {",": "commas", "\t": "tabs"}
_MARK = "\xef\xbb\xbf"  # of UTF-8, as Latin-1
# Excel's own first line, which says what stands between the cells.
_TOLD_DELIMITER = re.compile(r"sep=(.)", re.IGNORECASE)
_AS_TEXT = (datetime.timedelta, decimal.Decimal, uuid.UUID)
_ARROW_FILE = b"ARROW1"  # else it is a stream, which `datasets` writes
SPLITS = {"train": "train", "dev": "dev", "validation": "dev", "val": "dev", "test": "test"}
_NO_TABLES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


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
            _refuse_twins(path, row)
        elif quoted and not any(row):  # as spreadsheets end
            intake.leave_out("blank rows")
        elif len(row) != len(header):
            rule = _cells_rule(len(header), len(row))
            intake.bad(DataError(path, intake.line, rule, row))
        else:
            yield dict(zip(header, row, strict=True))
    if header is None:
        intake.bad(DataError(path, None, "must begin with a line that names the columns."))


def _refuse_twins(path: str | Path, header: Sequence[str]) -> None:
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise DataError(path, 1, "columns must have different names.", twice[0])


def _refuse_other_delimiter(path: str | Path, header: Sequence[str], delimiter: str) -> None:
    """Refuses a header of one cell that holds what spreadsheets elsewhere put between cells."""
    if len(header) == 1 and any(other in header[0] for other in _OTHERS):
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

    `.jsonl` has an object a line, `.json` that or an array of objects, `.csv` and `.tsv` are quoted
    as CSV is; a header without commas, or tabs, may have semicolons and the like. `.parquet` and
    `.arrow` need pyarrow; `intake.line` is then the number of a row, and
    a class that the library `datasets` numbers is its name.

    Raises:
        ConfigError: another ending; parquet or arrow without pyarrow.
        DataError: a row is damaged.
    """
    kind = ending(path)
    if kind == ".json" and begins_array(path):
        return _array_rows(path, intake)
    if kind in (".jsonl", ".json"):
        return (record for _, record in read_json_lines(path, intake))
    if kind in (".csv", ".tsv"):
        delimiter = _delimiter_of(path, "," if kind == ".csv" else "\t")
        return read_table(path, intake, delimiter=delimiter, quoted=True)
    if path.suffix in (".parquet", ".arrow"):
        return _pyarrow_rows(path, intake)
    raise ConfigError(
        "a table must be a .jsonl, .json, .csv, .tsv (each also .gz or .zst), .parquet or .arrow"
        f" file; save a spreadsheet as CSV. Received: {path.name!r}"
    )


def _delimiter_of(path: Path, usual: str) -> str:
    """Returns what stands between the cells: many countries' spreadsheets write ; there.

    Where the header has several of these, it is the one that gives it and the next line the most
    cells, as many to both.
    """
    lines = []
    with contextlib.suppress(DataError):  # which whoever reads the rows will tell
        lines = [line for _, line in itertools.islice(read_lines(path, encoding="latin-1"), 2)]
    header = lines[0].removeprefix(_MARK) if lines else ""
    if told := _TOLD_DELIMITER.fullmatch(header):
        return told[1]
    found = [other for other in (usual, *_OTHERS) if other in header]
    widths = {each: [_width(line, each) for line in lines] for each in found}
    fits = [each for each in found if len(set(widths[each])) == 1]
    return max(fits, key=lambda each: widths[each][0]) if fits else next(iter(found), usual)


def _width(line: str, delimiter: str) -> int:
    """Returns into how many cells a line falls; 0 where it is none of CSV's."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter)))
    except csv.Error:
        return 0


def _array_rows(path: Path, intake: Intake) -> Iterator[Mapping[str, Any]]:
    for line, row in read_json_array(path, intake):
        if isinstance(row, dict):
            yield row
        else:
            intake.bad(DataError(path, line, "an element must be an object.", row))


def _pyarrow_rows(path: Path, intake: Intake) -> Iterator[Mapping[str, Any]]:
    kind = path.suffix.removeprefix(".")
    require_extra("parquet", f"{path}: {'an' if kind == 'arrow' else 'a'} {kind} file")
    from pyarrow import ArrowException

    refuse_pointer(path)
    number = 0
    intake.at(path)
    try:
        with contextlib.ExitStack() as stack:
            schema, batches = _open_parquet(path, stack)
            names = _class_names(schema.metadata)
            _refuse_twins(path, schema.names)
            for batch in batches:
                for row in _rows_of(batch):
                    number += 1
                    intake.at(path, number)  # a row, where other files have lines
                    for column in names.keys() & row.keys():
                        row[column] = names[column].get(row[column], row[column])
                    yield {name: json_cell(value) for name, value in row.items()}
    except (ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | TfdeError):
            raise
        fault = first_line(error)
        intake.bad(DataError(path, None, f"must be a whole {kind} file ({fault})."))


def _rows_of(batch: Any) -> list[dict[str, Any]]:
    """Returns the rows of a batch; times that Python's own have no digits for are texts."""
    from pyarrow import ArrowInvalid, RecordBatch, string, timestamp, types

    def plain(column: Any) -> Any:
        if not types.is_timestamp(column.type) or column.type.unit != "ns":
            return column
        try:
            return column.cast(timestamp("us", column.type.tz))
        except ArrowInvalid:
            return column.cast(string())

    names = batch.schema.names
    rows: list[dict[str, Any]]
    rows = RecordBatch.from_arrays(list(map(plain, batch.columns)), names=names).to_pylist()
    return rows


def _open_parquet(path: Path, stack: contextlib.ExitStack) -> tuple[Any, Iterable[Any]]:
    """Returns the schema of a parquet or arrow file, and its batches of rows."""
    from pyarrow import OSFile, ipc
    from pyarrow.parquet import ParquetFile

    if path.suffix == ".parquet":
        table = stack.enter_context(ParquetFile(path))
        return table.schema_arrow, table.iter_batches(batch_size=1024)
    file = stack.enter_context(OSFile(str(path)))
    if file.read(len(_ARROW_FILE)) == _ARROW_FILE:
        whole = stack.enter_context(ipc.open_file(file))
        return whole.schema, map(whole.get_batch, range(whole.num_record_batches))
    file.seek(0)
    stream = stack.enter_context(ipc.open_stream(file))
    return stream.schema, stream


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[int, str]]:
    """Returns the names of numbered classes by column, which `datasets` keeps in the schema."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {
            column: dict(enumerate(map(str, feature["names"])))
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # another library's metadata, or none


def json_cell(value: Any) -> Any:
    """Returns a cell as JSON would hold it: dates and the like as text, no number as null.

    Bytes are texts in UTF-8. What is no cell, such as a set or bytes of something else, comes back
    as it is: whoever asks for a text will refuse it.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")  # NumPy's
    is_time = kind in tuple("mM") or hasattr(value, "strftime")
    if kind and not is_time:
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return list(map(json_cell, value))
    if isinstance(value, Mapping):
        return {str(name): json_cell(part) for name, part in value.items()}
    if is_time or isinstance(value, _AS_TEXT):
        return str(value) if value == value else None  # no time is not itself
    with contextlib.suppress(AttributeError, UnicodeDecodeError):
        value = value.decode()
    return value


def _plain_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    for _, line in read_lines(path, intake):
        yield line.split(delimiter)


def _quoted_rows(path: str | Path, intake: Intake, delimiter: str) -> Iterator[list[str]]:
    """Yields rows; a quote that is not closed costs the line it stands on, not all it swallows."""
    faults: dict[int, DataError] = {}  # of lines, each of which costs the row that it is part of

    def hold(fault: DataError) -> str:
        faults[fault.line or 0] = fault
        return str(fault.value)

    lines = raw_lines(path, intake, instead=hold)
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
                numbers = [number for number, _ in taken]
                taken.clear()
                if found := [faults.pop(number) for number in numbers if number in faults]:
                    intake.bad(found[0])
                elif width is None and len(row) == 2 and row[0].lower() == "sep=" and not row[1]:
                    continue
                elif row:
                    width = len(row) if width is None else width
                    yield row
            else:
                return
        except csv.Error as error:
            rule = f"must be a table in CSV's quoting ({error})."
        (line, text), *swallowed = taken
        intake.bad(faults.pop(line, DataError(path, line, rule, text)))
        again.extendleft(reversed(swallowed))
        taken.clear()


def _cells_rule(wanted: int, found: int) -> str:
    return f"a row must have {wanted} cells, as the header; it has {found}."


def split_of_name(name: str) -> str:
    """Returns the split that a name begins with or holds as a word; "" for none."""
    words = re.findall(r"[a-z]+", name.lower())
    begins = re.match(r"(train|dev|test)(?:ing|set|data|split)?(?![a-z])", name.lower())
    for word, split in SPLITS.items():
        if word in words or (begins and begins[1] == split):
            return split
    return ""


def table_files(folder: Path) -> list[tuple[Path, str]]:
    """Returns the tables of a folder in their order, each with its split ("" for none).

    A folder that `save_to_disk` wrote says itself which files and splits it has. In any other, all
    tables are taken, and the name of a file, or else of a folder above it, tells the split.

    Raises:
        ConfigError: no table, or some have a split and some have none.
        DataError: `dataset_dict.json` or `state.json` is damaged, or rows were selected that the
            files do not tell apart.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _listed(folder / "dataset_dict.json", "splits")
        files = [
            (file, SPLITS.get(split, split))
            for split in map(str, splits)
            for file, _ in table_files(folder / split)
        ]
    elif (folder / "state.json").is_file():
        if _listed(folder / "state.json", "_indices_data_files"):
            rule = "must be of a dataset whose rows are written out (`flatten_indices`)."
            raise DataError(folder / "state.json", None, rule)
        parts = _listed(folder / "state.json", "_data_files")
        files = [(folder / str(part.get("filename")), "") for part in parts]
    else:
        files = [
            (file, _split_within(folder, file))
            for file in sorted(folder.rglob("*"))
            if ending(file) in ENDINGS and file.name not in _NO_TABLES and file.is_file()
        ]
    if not files:
        raise ConfigError(
            f"{folder}: `input` must be a folder that holds {', '.join(ENDINGS[:-1])} or"
            f" {ENDINGS[-1]} files."
        )
    without = [file for file, split in files if not split]
    if without and len(without) < len(files):
        raise ConfigError(
            f"{folder}: the names of all files or of none must tell a split; give files one by one."
            f" Received: {without[0].relative_to(folder)}"
        )
    return files


def _split_within(folder: Path, file: Path) -> str:
    names = reversed(file.relative_to(folder).parts)
    return next(filter(None, map(split_of_name, names)), "")


def _listed(path: Path, name: str) -> list[Any]:
    record = read_json_file(path)
    value = record.get(name) if isinstance(record, dict) else None
    if value is None and name != "splits":
        return []
    if not isinstance(value, list):
        raise DataError(path, None, f"field {name!r} must be a list.", value)
    return value
