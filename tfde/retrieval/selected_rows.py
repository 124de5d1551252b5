"""Some rows of a matrix, gathered only where they are read."""

from __future__ import annotations

from typing import Any

import numpy as np


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
