"""Rows of different lengths in two flat files that are mapped, not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_START = np.dtype("<i8")


class RaggedColumn:
    """Rows of bytes or numbers, read from the disk when they are asked for.

    Args:
        directory: Where `NAME.starts` (int64) and `NAME.data` lie.
        name: The column's name.
        dtype: Of the data.
    """

    def __init__(self, directory: str | Path, name: str, dtype: Any = np.uint8) -> None:
        self.starts = flat_column(Path(directory) / f"{name}.starts", _START)
        self._data = flat_column(Path(directory) / f"{name}.data", np.dtype(dtype))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> np.ndarray:
        """Returns a row's numbers."""
        return self._data[self.starts[number] : self.starts[number + 1]]

    def text(self, number: int) -> str:
        """Returns a row's bytes as text."""
        return self.row(number).tobytes().decode()


class RaggedWriter:
    """Writes a ragged column, row by row.

    Args:
        directory: Where it is to lie.
        name: The column's name.
    """

    def __init__(self, directory: str | Path, name: str) -> None:
        self._starts = open(Path(directory) / f"{name}.starts", "wb")  # noqa: SIM115
        self._data = open(Path(directory) / f"{name}.data", "wb")  # noqa: SIM115
        self._end = 0
        self._starts.write(_START.type(0).tobytes())

    def append(self, lengths: list[int], data: bytes) -> None:
        """Adds rows.

        Args:
            lengths: How many items each row has.
            data: The items of all these rows, one after the other.
        """
        ends = np.cumsum(lengths, dtype=_START) + self._end
        if len(ends):
            self._end = int(ends[-1])
        self._starts.write(ends.tobytes())
        self._data.write(data)

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._starts.close()
        self._data.close()


def flat_column(path: Path, dtype: np.dtype) -> np.ndarray:
    """Returns the numbers of a file, mapped; an empty file cannot be."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    # A plain array: indexing a `memmap` costs several times as much.
    return np.memmap(path, dtype, "r").view(np.ndarray)
