"""Tables in memory, as pandas, polars and pyarrow have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def rows_of_frame(value: Any) -> Iterator[dict[str, Any]] | None:
    """Returns the rows of a table, column -> cell, None where one is missing.

    Args:
        value: A pandas or polars DataFrame, or a pyarrow Table; anything else gives `None`.
    """
    if hasattr(value, "itertuples") and hasattr(value, "columns"):
        names = [str(name) for name in value.columns]
        cells = value.astype(object).where(value.notna(), None).itertuples(index=False, name=None)
        return (dict(zip(names, row, strict=True)) for row in cells)
    if hasattr(value, "columns"):
        for rows in ("iter_rows", "to_pylist"):  # polars, pyarrow
            if hasattr(value, rows):
                named = {"named": True} if rows == "iter_rows" else {}
                return iter(getattr(value, rows)(**named))
    return None
