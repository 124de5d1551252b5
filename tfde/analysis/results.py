"""`results.jsonl`, a line a cell as soon as it is done; `queries/`, its measures by query."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfde.data.atomic import atomic_file
from tfde.data.json_lines import json_line
from tfde.errors import ConfigError, CorruptError, DataError

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

    Args:
        output: Directory of the study.
        key: Hash of the result.
        found: `query_ids`, and `by_query`: measure -> values in their order.
    """
    path = _by_query_file(output, key)
    record = {name: found[name] for name in ("query_ids", "by_query")}
    with atomic_file(path) as temporary:
        temporary.write_bytes(gzip.compress(json.dumps(record).encode(), mtime=0))


def read_by_query(output: Path, key: str) -> dict[str, dict[str, float]]:
    """Returns measure -> query id -> value of a result.

    Raises:
        ConfigError: there is no such file.
        CorruptError: the file is damaged.
    """
    path = _by_query_file(output, key)
    if not path.is_file():
        raise ConfigError(
            f"{path}: does not exist; comparisons need the measures of each query."
            f" Remove the line with {key} from {RESULTS_FILE}, and do the study again."
        )
    try:
        record = json.loads(gzip.decompress(path.read_bytes()))
        return {
            name: dict(zip(record["query_ids"], values, strict=True))
            for name, values in record["by_query"].items()
        }
    except (OSError, EOFError, ValueError, KeyError, zlib.error) as error:
        raise CorruptError(f"{path}: is damaged ({error}).") from error


def _by_query_file(output: Path, key: str) -> Path:
    return output / QUERIES_FOLDER / f"{key}.json.gz"


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not {"axes", "seed", "hash", "measures"} <= set(record):
        rule = "must be a record with axes, seed, hash and measures."
        raise DataError(path, number, rule, line.decode(errors="replace"))
    return record
