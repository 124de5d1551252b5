"""JSON, ids and arrays as files that appear whole or not at all, and their checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import numbers
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np

from tfde.errors import CorruptError, DataError, utf8_fault
from tfde.storage.atomic import atomic_file
from tfde.storage.json_file import read_json_file


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Gives a file that becomes `path` at the end.

    Raises:
        OSError: it cannot be written, with its name, which Python leaves out.
    """
    try:
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            yield file
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def reserve(path: Path, size: int) -> None:
    """Makes a file of so many bytes, for whatever writes it next cannot say that a disk is full.

    Raises:
        OSError: there is no room for them.
    """
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON with sorted keys, atomically."""
    with new_file(path) as file:
        file.write((json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in `path`.

    Raises:
        CorruptError: the file does not hold a JSON object.
    """
    try:
        value = read_json_file(path)
    except DataError:
        value = None
    if not isinstance(value, dict):
        raise CorruptError(f"{path}: does not hold a JSON object.")
    return value


def write_ids(path: Path, doc_ids: Iterable[str]) -> None:
    """Writes one id a line, UTF-8, atomically."""
    with new_file(path) as file:
        file.writelines(doc_id.encode() + b"\n" for doc_id in doc_ids)


def read_ids(path: Path) -> list[str]:
    """Returns the ids in `path`, one a line."""
    return path.read_bytes().decode().split("\n")[:-1]


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes `array` as `.npy`, atomically."""
    with new_file(path) as file:
        # Something that only writes: of a file NumPy would not tell why it could not.
        only_writes = SimpleNamespace(write=file.write)
        np.lib.format.write_array(only_writes, np.ascontiguousarray(array), allow_pickle=False)


def open_array(path: Path) -> np.ndarray:
    """Returns the array in `path`, memory-mapped and read-only.

    Raises:
        CorruptError: the file is not a whole `.npy` file.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CorruptError(f"{path}: is not a whole .npy file ({error}).") from error


def sha256(path: Path) -> str:
    """Returns the SHA-256 of the file's content in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Compares a file with its recorded checksum.

    Raises:
        CorruptError: the file is missing or differs.
    """
    if not path.is_file():
        raise CorruptError(f"{path}: is missing.")
    received = sha256(path)
    if received != expected:
        raise CorruptError(
            f"{path}: differs from what was written. Expected sha256 {expected[:16]}..."
            f" Received: {received[:16]}..."
        )


def check_id(value: object, path: str | Path, line: int, name: str = "document id") -> str:
    """Returns `value` if it can stand in a TREC run.

    Raises:
        DataError: not a string, empty, with white space in it, or not to be written in UTF-8.
    """
    if not isinstance(value, str) or value.split() != [value] or utf8_fault(value) is not None:
        number = "; write a number as text" if isinstance(value, numbers.Number) else ""
        rule = f"a {name} must be UTF-8 text without white space{number}."
        raise DataError(path, line, rule, value)
    return value


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes `target` a hard link to `source`, or a copy where that cannot be.

    Either way `target` stays whole when `source` is removed or replaced. (All writers of tfde
    replace files; a program that writes into a file changes its links too.)
    """
    # A link to a symbolic link would hang on what that one points to.
    source = Path(source).resolve()
    try:
        os.link(source, target)
    except OSError:  # another file system, one without links, or a file of somebody else
        shutil.copyfile(source, target)
