"""Weights that are not numbers give embeddings that are not: they are told when they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfde.errors import DataError

_MOST = float(np.finfo(np.float32).max)


def check_finite(path: Path, name: str, array: np.ndarray) -> None:
    """Refuses an array with a value that float32 cannot hold.

    Args:
        path: The file, for the message.
        name: The array.
        array: Of any floating dtype and shape.

    Raises:
        DataError: a value is NaN, infinite, or beyond float32.
    """
    if not array.size:
        return
    # No mask of the array's size: a checkpoint may fill the memory.
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN
        least, most = float(array.min()), float(array.max())
    for value in (least, most):
        if not abs(value) <= _MOST:  # NaN too, which is neither above nor below
            raise DataError(path, None, f"the array {name} must hold finite float32.", value)
