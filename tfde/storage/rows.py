"""Matrices that are read block by block: 8-bit integers with scales, some rows of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_LARGEST = 127
_ROWS_AT_ONCE = 65_536


class ScaledRows:
    """A matrix whose row i is `scales[i] * integers[i]`, read as float32 block by block.

    Args:
        integers: `(rows, D)` int8, perhaps memory-mapped.
        scales: `(rows,)` float32.
    """

    ndim = 2

    def __init__(self, integers: np.ndarray, scales: np.ndarray) -> None:
        self.integers = integers
        self.scales = scales
        self.shape: tuple[int, int] = integers.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.integers[rows].astype(np.float32) * self.scales[rows, np.newaxis]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


class SelectedRows:
    """Rows of a matrix as a matrix of their own, so that one on the disk can stay there.

    Args:
        matrix: `(N, D)` float32, perhaps memory-mapped.
        rows: `(R,)` int64, which rows of it, in which order.
    """

    ndim = 2

    def __init__(self, matrix: np.ndarray, rows: np.ndarray) -> None:
        self._matrix = matrix
        self._rows = rows
        self.shape: tuple[int, int] = (len(rows), matrix.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self._matrix[self._rows[rows]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


# What is read by slices of rows, `(rows, D)`, and need not be in memory.
Rows = np.ndarray | ScaledRows | SelectedRows


def in_memory(parts: Sequence[Rows]) -> np.ndarray:
    """Returns consecutive blocks of rows as one contiguous matrix, `(rows, D)` float32.

    A single block that is such a matrix is returned as it is.
    """
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        return np.ascontiguousarray(parts[0], np.float32)
    matrix = np.empty((sum(map(len, parts)), parts[0].shape[1]), np.float32)
    end = 0
    for part in parts:
        for start in range(0, len(part), _ROWS_AT_ONCE):
            block = part[start : start + _ROWS_AT_ONCE]
            matrix[end : end + len(block)] = block
            end += len(block)
    return matrix


def scale_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(rows, D)` int8 and `(rows,)` float32 scales; a row's largest number becomes 127.

    Args:
        vectors: `(rows, D)` float32, finite. A row of zeros stays one.

    Source: derived here; no number is further from its own than half its row's scale.
    """
    scales = np.abs(vectors).max(axis=1) / np.float32(_LARGEST)
    divisors = np.where(scales > 0, scales, 1)[:, np.newaxis]
    return np.rint(vectors / divisors).astype(np.int8), scales.astype(np.float32)
