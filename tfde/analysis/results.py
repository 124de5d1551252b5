"""`results.jsonl`: a line a cell, written as soon as the cell is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tfde.data.json_lines import json_line
from tfde.errors import DataError

STUDY_FILE = "study.json"  # axes, and the cells with their hashes
RESULTS_FILE = "results.jsonl"


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


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not {"axes", "seed", "hash", "measures"} <= set(record):
        rule = "must be a record with axes, seed, hash and measures."
        raise DataError(path, number, rule, line.decode(errors="replace"))
    return record
