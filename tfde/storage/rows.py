"""Vectors as 8-bit integers with a scale each: a quarter of float32's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

_LARGEST = 127


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


def scale_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(rows, D)` int8 and `(rows,)` float32 scales; a row's largest number becomes 127.

    Args:
        vectors: `(rows, D)` float32, finite. A row of zeros stays one.

    Source: derived here; no number is further from its own than half its row's scale.
    """
    scales = np.abs(vectors).max(axis=1) / np.float32(_LARGEST)
    divisors = np.where(scales > 0, scales, 1)[:, np.newaxis]
    return np.rint(vectors / divisors).astype(np.int8), scales.astype(np.float32)
