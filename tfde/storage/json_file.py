"""JSON files, read whole within bounds; other files of checkpoints, told from Git LFS pointers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfde.errors import DataError

# The largest vocabularies of published tokenizers take some 40 MiB.
MAX_JSON_BYTES = 1 << 30
_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json_file(path: Path) -> Any:
    """Returns the value in a JSON file in UTF-8, with or without a byte order mark.

    Raises:
        DataError: it is a Git LFS pointer, too large, no UTF-8, no JSON, or nested too deep.
        OSError: it cannot be read.
    """
    refuse_pointer(path)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        rule = f"a JSON file must be at most {MAX_JSON_BYTES >> 20} MiB."
        raise DataError(path, None, rule, f"{size} bytes")
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise DataError(path, line, f"must be JSON ({json_fault(error)}).") from error


def read_binary_file(path: Path) -> bytes:
    """Returns what is in a file that Git LFS may keep.

    Raises:
        DataError: it is a Git LFS pointer.
        OSError: it cannot be read.
    """
    refuse_pointer(path)
    return path.read_bytes()


def refuse_pointer(path: Path) -> None:
    """Refuses a file that stands for one that Git did not fetch.

    Raises:
        DataError: it is a Git LFS pointer.
    """
    if not path.is_file():
        return
    with open(path, "rb") as file:
        start = file.read(len(_POINTER))
    if start == _POINTER:
        rule = "is a Git LFS pointer and not the file it stands for; `git lfs pull` fetches it."
        raise DataError(path, None, rule)


def json_fault(error: ValueError | RecursionError) -> str:
    """Returns in a few words why `json.loads` refused a text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deep" if isinstance(error, RecursionError) else "a number is too long"
