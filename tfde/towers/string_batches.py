"""Texts of pairs in the forms that Keras' users have them: columns, and batches of columns."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, require

STRINGS = ("query", "document", "title", "context")
_RULE = "(queries, documents), or a dict of `query`, `document`, perhaps `title` and `context`"


def joined(x: Any, y: Any) -> Any:
    """Returns pairs: `x` itself, or the queries `x` with the documents `y`."""
    return x if y is None else (texts_of_column(x), texts_of_column(y))


def plain_rows(x: Any) -> Any:
    """Returns the rows of columns, and what is none as it is.

    Args:
        x: Two columns of equally many texts, `(queries, documents)`, or a dict of columns: lists,
            arrays or tensors. Or an array of rows, (N, 2) or wider.

    Raises:
        ConfigError: columns of other lengths or names; a third column, of weights; a function.
    """
    rule = "pairs; a function that makes them must be called"
    require(not inspect.isroutine(x), "x", rule, getattr(x, "__name__", x))
    if isinstance(x, tuple) and len(x) == 3 and all(map(is_column, x)):
        require(False, "x", "two columns, (queries, documents): pairs have no weights", "three")
    if isinstance(x, np.ndarray) and x.ndim == 2:
        return [tuple(row) for row in x.tolist()]
    if isinstance(x, list) and len(x) == 2 and all(isinstance(part, list) for part in x):
        # Keras' list of two inputs, or two rows of a query with its documents?
        sure = len(x[0]) <= 2 or len(x[0]) != len(x[1])
        rule = "a tuple of columns, (queries, documents), or a list of rows that are tuples"
        require(sure, "x", rule, f"a list of two lists of {len(x[0])}")
    columns = _columns(x) if isinstance(x, Mapping | tuple) else None
    if columns is None:
        return x
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def one_batch(x: Any, replicas: int) -> dict[str, Any]:
    """Returns pairs as one batch, as `PairBatches` says.

    Args:
        x: What `plain_rows` and `tfde.pairs` take; or a batch of `tfde.pairs(...)`.
        replicas: How many share its rows.

    Raises:
        ConfigError: it is none of these, or its rows cannot be shared out evenly.
    """
    if not (isinstance(x, Mapping) and "document_key" in x):
        table = read_pairs(plain_rows(x))
        size, negatives = len(table), table.max_negatives
        data = PairDataset(table, batch_size=size, negatives_per_query=negatives, shuffle=False)
        x = data.batch(0)
    rows = len(x["query"])
    require(rows % replicas == 0, "x", f"a multiple of the {replicas} replicas", f"{rows} pairs")
    return dict(x)


def streamed_strings(x: Any) -> tuple[Any, tf.data.Dataset | None]:
    """Returns `x` as it was before it was looked at, and the batches of strings that it yields.

    Args:
        x: A `keras.utils.PyDataset` or a generator whose elements are batches of columns, as
            `plain_rows` says. A generator is read once. All else yields none.
    """
    if isinstance(x, keras.utils.PyDataset):
        return x, _dataset_of(lambda: _epoch(x), _columns_of_batch(x[0]))
    if not isinstance(x, Iterator):
        return x, None
    first = next(x, None)
    x = itertools.chain([] if first is None else [first], x)
    columns = None if first is None else _columns(first)
    if columns is None:
        return x, None
    return x, _dataset_of(lambda: x, columns)


def _epoch(x: keras.utils.PyDataset) -> Iterator[Any]:
    steps = x.num_batches
    yield from map(x.__getitem__, itertools.count() if steps is None else range(steps))
    x.on_epoch_end()


def _dataset_of(elements: Any, first: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns batches of strings: titles or "", and contexts where the first batch has them."""
    names = [name for name in STRINGS if name != "context" or name in first]

    def batches() -> Iterable[dict[str, np.ndarray]]:
        for element in elements():
            columns = _columns_of_batch(element)
            size = len(columns["query"])
            same = ("context" in columns) == ("context" in first)
            require(same, "x", "of batches that all have a `context`, or none has", list(columns))
            texts = {name: columns.get(name, [""] * size) for name in names}
            yield {name: np.array(column, object) for name, column in texts.items()}

    spec = {name: tf.TensorSpec([None], tf.string) for name in names}
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def _columns_of_batch(x: Any) -> dict[str, list[str]]:
    columns = _columns(x)
    if columns is None:
        raise ConfigError(f"a batch must be {_RULE}. Received: {type(x).__name__}")
    return columns


def _columns(x: Any) -> dict[str, list[str]] | None:
    """Returns columns by their names; `None` where `x` has no columns."""
    if isinstance(x, Mapping):
        if not x or not all(map(is_column, x.values())):
            return None
        named = {str(name): column for name, column in x.items()}
        known = {"query", "document"} <= set(named) <= set(STRINGS)
        require(known, "x", f"of columns {_RULE}", list(named))
    elif isinstance(x, tuple | list) and len(x) == 2 and all(map(is_column, x)):
        named = dict(zip(STRINGS, x, strict=False))
    else:
        return None
    columns = {name: texts_of_column(column) for name, column in named.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    require(len(set(lengths.values())) == 1, "x", "of columns of one length", lengths)
    return columns


def is_column(x: Any) -> bool:
    """Returns whether it is a list, an array or a tensor; a tuple is a pair."""
    array = isinstance(x, np.ndarray | tf.Tensor) or hasattr(x, "to_numpy")
    return (array and len(np.shape(x)) == 1) or isinstance(x, list)


def texts_of_column(column: Any) -> list[Any]:
    """Returns what a column holds; bytes are texts."""
    values: Sequence[Any] = column.numpy() if isinstance(column, tf.Tensor) else column
    return [text.decode() if isinstance(text, bytes) else text for text in list(values)]
