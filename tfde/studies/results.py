"""`results.jsonl`, a line a cell as soon as it is done; `queries/`, its measures by query."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, CorruptError, DataError
from tfde.storage.atomic import atomic_file
from tfde.storage.json_lines import json_line

STUDY_FILE = "study.json"  # axes, and the cells with their hashes
RESULTS_FILE = "results.jsonl"
QUERIES_FOLDER = "queries"


def read_results(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file of results; a last line that was cut by a kill is left out.

    Raises:
        DataError: any other line is not the record of a cell.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line break was cut
    return [_record(path, number, line) for number, line in enumerate(lines, start=1)]


def append_result(path: Path, record: dict[str, Any]) -> None:
    """Adds a record as a line that is on the disk when this returns."""
    with path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)  # drops a line that was cut by a kill
        file.write(json_line(record))
        file.flush()
        os.fsync(file.fileno())


def write_by_query(output: Path, key: str, found: Mapping[str, Any]) -> None:
    """Writes the measures of each query.

    The ids, which results of the same queries have in common, are a file of their own, named
    after its content.

    Args:
        output: Directory of the study.
        key: Hash of the result.
        found: `query_ids`, and `by_query`: measure -> values in their order.
    """
    ids = json.dumps(found["query_ids"]).encode()
    name = f"ids-{hashlib.sha256(ids).hexdigest()[:16]}"
    if not _queries_file(output, name).exists():
        _write(_queries_file(output, name), ids)
    record = {"query_ids": name, "by_query": found["by_query"]}
    _write(_queries_file(output, key), json.dumps(record).encode())


def has_by_query(output: str | Path, key: str) -> bool:
    """Returns whether the measures of each query are there for a result."""
    return _queries_file(Path(output), key).is_file()


def read_by_query(output: Path, key: str) -> dict[str, dict[str, float]]:
    """Returns measure -> query id -> value of a result.

    Raises:
        ConfigError: there is no such file.
        CorruptError: the file, or that of the ids, is damaged.
    """
    record = _read(output, key, key)
    path = _queries_file(output, key)
    try:
        ids = _read(output, record["query_ids"], key)
        return {
            name: dict(zip(ids, values, strict=True)) for name, values in record["by_query"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path}: is damaged ({error}).") from error


def _read(output: Path, name: str, key: str) -> Any:
    path = _queries_file(output, name)
    if not path.is_file():
        raise ConfigError(
            f"{path}: does not exist; comparisons need the measures of each query."
            f" Remove the line with {key} from {RESULTS_FILE}, and do the study again."
        )
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CorruptError(f"{path}: is damaged ({error}).") from error


def _write(path: Path, content: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0))


def _queries_file(output: Path, name: str) -> Path:
    return output / QUERIES_FOLDER / f"{name}.json.gz"


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    needed = {"axes", "seed", "hash", "measures", "seconds"}
    if not isinstance(record, dict) or not needed <= set(record):
        rule = "must be a record with axes, seed, hash, measures and seconds."
        raise DataError(path, number, rule, line.decode(errors="replace"))
    return record
