"""Tables and columns in memory, as pandas, polars, pyarrow and others have them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfde.errors import require, shorten

# How each of them gives its rows: pandas, polars, pyarrow.
_ROWS = ("itertuples", "iter_rows", "to_pylist")
_MOST_COLUMNS = 4  # that somebody would write as lists in a list


def rows_in_memory(argument: str, value: Any) -> Any:
    """Returns the rows of a table or of columns, and what is neither as it is.

    Args:
        argument: What messages call it.
        value: A frame, as `rows_of_frame` has it; columns of texts, as `columns_of`, in a dict or
            a tuple; or an array of rows, (N, 2) or wider.

    Raises:
        ConfigError: columns of other lengths, or of weights; a list of lists that may be rows or
            columns; a function.
    """
    rule = "pairs; a function that makes them must be called"
    require(not inspect.isroutine(value), argument, rule, getattr(value, "__name__", value))
    table = rows_of_frame(value)
    if table is not None:
        return table
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return list(map(tuple, value.tolist()))
    _refuse_either(argument, value)
    columns = columns_of(argument, value) if isinstance(value, Mapping | tuple) else None
    if columns is None:
        return value
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


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


def columns_of(argument: str, value: Any) -> dict[str, list[Any]] | None:
    """Returns columns by their names; `None` where there are none.

    Args:
        argument: What messages call it.
        value: A dict of columns; or `(queries, documents, negatives, ...)`, a list of which has
            two. Negatives may be arrays or tensors of two axes, a row for each pair.

    Raises:
        ConfigError: columns of other lengths; a third one that holds no texts.
    """
    many = isinstance(value, tuple) and len(value) > 1
    places: Sequence[Any] = ()
    if isinstance(value, Mapping):
        named = {str(name): column for name, column in value.items()}
    elif many or (isinstance(value, list) and len(value) == 2):
        named, places = dict(zip(names_of_places(len(value)), value, strict=True)), value
    else:
        return None
    if not named or not all(is_column(part) or _has_rows(part) for part in named.values()):
        return None
    rule = "columns of texts: pairs have no weights"
    for part in places[2:]:
        require(_of_texts(part), argument, rule, shorten(part))
    columns = {name: texts_of_column(column) for name, column in named.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    require(len(set(lengths.values())) == 1, argument, "of columns of one length", lengths)
    return columns


def names_of_places(count: int) -> list[str]:
    """Returns what the columns of a tuple are called: query, document, negatives."""
    return ["query", "document", *(f"negative_{place}" for place in range(1, count - 1))]


def texts_of_column(column: Any) -> list[Any]:
    """Returns what a column holds; bytes are texts."""
    if hasattr(column, "numpy"):
        column = column.numpy()
    values: Sequence[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [_text(value) for value in list(values)]


def _has_rows(value: Any) -> bool:
    """Returns whether it is an array or a tensor with a row of texts for each pair."""
    return not hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2


def _of_texts(column: Any) -> bool:
    """Returns whether a column begins with a text, none, or a row of texts."""
    first = next(iter(texts_of_column(column)), None)
    first = next(iter(first), None) if isinstance(first, list) else first
    return first is None or isinstance(first, str)


def _text(value: Any) -> Any:
    """Returns bytes as the text that they are, a row of texts as a list of them."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_text(part) for part in value]
    with contextlib.suppress(AttributeError, UnicodeDecodeError):  # which a reader of rows names
        return value.decode()
    return value


def _refuse_either(argument: str, rows: Any) -> None:
    """Refuses a list of a few lists of equal length, which may be columns or rows."""
    few = isinstance(rows, list) and 2 <= len(rows) <= _MOST_COLUMNS
    if few and all(isinstance(part, list) for part in rows):
        lengths = set(map(len, rows))
        rule = "a tuple of columns, (queries, documents), or a list of rows that are tuples"
        received = f"a list of {len(rows)} lists of {max(lengths)}"
        require(len(lengths) > 1 or max(lengths) <= 2, argument, rule, received)
