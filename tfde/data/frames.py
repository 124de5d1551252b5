"""Tables and columns in memory, as pandas, polars, pyarrow and others have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfde.errors import require

# How each of them gives its rows: pandas, polars, pyarrow.
_ROWS = ("itertuples", "iter_rows", "to_pylist")


def rows_of_frame(value: Any) -> Iterator[dict[str, Any]] | None:
    """Returns the rows of a table, column -> cell, None where one is missing.

    Args:
        value: A pandas or polars DataFrame, or a pyarrow Table; anything else gives `None`.

    Raises:
        ConfigError: two columns have one name.
    """
    rows = next((name for name in _ROWS if hasattr(value, name)), None)
    if rows is None or not hasattr(value, "columns"):
        return None
    columns = value.column_names if hasattr(value, "column_names") else value.columns
    names = list(map(str, columns))
    require(len(set(names)) == len(names), "columns", "of different names", names)
    if rows == "itertuples":
        value = value.astype(object).where(value.notna(), None)
        cells = value.itertuples(index=False, name=None)
    else:
        cells = value.iter_rows() if rows == "iter_rows" else map(dict.values, value.to_pylist())
    return (dict(zip(names, row, strict=True)) for row in cells)


def is_column(value: Any) -> bool:
    """Returns whether it is a list, a column of a table, or an array or tensor of one axis.

    A tuple is a pair, and a string a text.
    """
    if isinstance(value, str | bytes | tuple) or hasattr(value, "columns"):
        return False
    if isinstance(value, np.ndarray) or hasattr(value, "to_numpy") or hasattr(value, "numpy"):
        return len(np.shape(value)) == 1
    return isinstance(value, Sequence)
