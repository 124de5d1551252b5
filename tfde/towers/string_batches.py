"""Texts of pairs in the forms that Keras' users have them: columns, and batches of columns."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.data.formats.columns import KNOWN_NAMES, NEGATIVE
from tfde.data.frames import is_column
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.read_pairs import read_pairs, refuse_either
from tfde.errors import ConfigError, require, shorten
from tfde.towers.input_failures import telling

_RULE = (
    "(queries, documents, negatives, ...), or a dict of `query`, `document`, perhaps `title`,"
    " `context` and `negative`, `negative_1` ... or `negatives`"
)


def joined(x: Any, y: Any) -> Any:
    """Returns pairs: `x` itself, or the queries `x` with the documents `y`."""
    if y is None:
        return x
    for name, part in (("x", x), ("y", y)):
        rule = "a column of texts: a list, an array, a tensor, a column of a table"
        require(is_column(part) or isinstance(part, tuple), name, rule, part)
    return texts_of_column(x), texts_of_column(y)


def plain_rows(x: Any) -> Any:
    """Returns the rows of columns, and what is none as it is.

    Args:
        x: Two columns of equally many texts, `(queries, documents)`, or a dict of columns: lists,
            arrays or tensors, of negatives perhaps (N, M). Or an array of rows, (N, 2) or wider.

    Raises:
        ConfigError: columns of other lengths; a third column, of weights; a function.
    """
    rule = "pairs; a function that makes them must be called"
    require(not inspect.isroutine(x), "x", rule, getattr(x, "__name__", x))
    if isinstance(x, tuple) and len(x) == 3 and all(map(is_column, x)) and not _of_texts(x[2]):
        require(False, "x", "columns of texts: pairs have no weights", shorten(x[2]))
    if isinstance(x, np.ndarray) and x.ndim == 2:
        return [tuple(row) for row in x.tolist()]
    refuse_either("x", x)  # Keras' list of inputs, or rows?
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


def streamed_strings(x: Any, *, order: int | None = None) -> tuple[Any, tf.data.Dataset | None]:
    """Returns `x` as it was before it was looked at, and the batches of strings that it yields.

    Args:
        order: Seed of the order of a `PyDataset`'s batches, another in each epoch, as in Keras;
            `None`: their own.
        x: A `keras.utils.PyDataset` or a generator whose elements are batches of columns, as
            `plain_rows` says. A generator is read once. All else yields none.
    """
    if isinstance(x, keras.utils.PyDataset):
        passes = itertools.count()
        return x, _dataset_of(lambda: _epoch(x, order, next(passes)), _columns_of_batch(x[0]))
    if not isinstance(x, Iterator):
        return x, None
    first = next(x, None)
    x = itertools.chain([] if first is None else [first], x)
    if first is None or _columns(first) is None:
        return x, None
    return x, _dataset_of(lambda: x, _columns_of_batch(first))


def _epoch(x: keras.utils.PyDataset, order: int | None, number: int) -> Iterator[Any]:
    x.on_epoch_begin()
    steps = x.num_batches
    places: Iterable[int] = itertools.count() if steps is None else range(steps)
    if order is not None and steps is not None:
        places = np.random.default_rng([order, number]).permutation(steps).tolist()
    yield from map(x.__getitem__, places)
    x.on_epoch_end()


def _dataset_of(elements: Any, first: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns batches of strings: titles or "", what else the first batch has, in all of them."""
    optional = [name for name in ("context", "negatives") if name in first]
    ranks = dict.fromkeys(("query", "document", "title", *optional), 1) | (
        {"negatives": 2} if "negatives" in first else {}
    )

    def batches() -> Iterable[dict[str, np.ndarray]]:
        with telling():
            for element in elements():
                columns = _columns_of_batch(element)
                same = set(columns) - {"title"} == set(first) - {"title"}
                rule = f"of batches that all have the columns of the first, {', '.join(first)}"
                require(same, "x", rule, list(columns))
                texts = {"title": [""] * len(columns["query"]), **columns}
                yield {name: np.array(texts[name], object) for name in ranks}

    spec = {name: tf.TensorSpec([None] * rank, tf.string) for name, rank in ranks.items()}
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def _columns_of_batch(x: Any) -> dict[str, list[Any]]:
    """Returns columns by their kinds, as `kinds_of_columns` has them; negatives as (B, M)."""
    columns = _columns(x)
    if columns is None:
        raise ConfigError(f"a batch must be {_RULE}. Received: {type(x).__name__}")
    kinds = kinds_of_columns("x", columns)
    kept = {kind: columns[name] for name, kind in kinds.items() if kind != "negatives"}
    for kind, column in kept.items():
        wrong = [text for text in column if not isinstance(text, str | bytes)]
        require(not wrong, "x", f"of texts in the column `{kind}`", wrong[:1])
    given = [column for name, column in columns.items() if kinds[name] == "negatives"]
    if not given:
        return kept
    rows: list[list[Any]] = [
        [text or "" for cell in cells for text in (cell if isinstance(cell, list) else [cell])]
        for cells in zip(*given, strict=True)
    ]
    width = max(map(len, rows), default=0)
    return kept | {"negatives": [row + [""] * (width - len(row)) for row in rows]}


def kinds_of_columns(argument: str, names: Iterable[str]) -> dict[str, str]:
    """Returns what each column is: `query`, `document`, `title`, `context` or `negatives`.

    Args:
        argument: What the columns came as.
        names: Theirs, as a table's are known, such as `anchor`, `positive` and `negative_1`.

    Raises:
        ConfigError: a name is none of these, stands twice, or query or document is not there;
            negatives beside a context, which they would have none of.
    """
    kinds = {}
    for name in names:
        lower = name.strip().lower()
        known = (kind for kind in ("query", "document", "title") if lower in KNOWN_NAMES[kind])
        kinds[name] = "negatives" if NEGATIVE.fullmatch(name) else next(known, lower)
    single = [kind for kind in kinds.values() if kind != "negatives"]
    once = len(set(single)) == len(single)
    understood = {"query", "document"} <= set(single) <= {"query", "document", "title", "context"}
    rule = f"of strings, {_RULE}; no other columns"
    require(once and understood, argument, rule, list(kinds))
    both = "context" in single and "negatives" in kinds.values()
    require(not both, argument, "without `context` where negatives are given", list(kinds))
    return kinds


def _columns(x: Any) -> dict[str, list[Any]] | None:
    """Returns columns by their names; `None` where `x` has no columns."""
    if isinstance(x, Mapping):
        if not x or not all(is_column(part) or _is_rows_of_texts(part) for part in x.values()):
            return None
        named = {str(name): column for name, column in x.items()}
    elif (isinstance(x, tuple) and len(x) >= 2) or (isinstance(x, list) and len(x) == 2):
        if not (all(map(is_column, x[:2])) and all(map(_of_texts, x[2:]))):
            return None
        named = dict(zip(names_of_places(len(x)), x, strict=True))
    else:
        return None
    columns = {name: texts_of_column(column) for name, column in named.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    require(len(set(lengths.values())) == 1, "x", "of columns of one length", lengths)
    return columns


def names_of_places(count: int) -> list[str]:
    """Returns what the columns of a tuple are called: query, document, negatives."""
    return ["query", "document", *(f"negative_{place}" for place in range(1, count - 1))]


def _is_rows_of_texts(x: Any) -> bool:
    """Returns whether it is an array or a tensor with a row of texts for each pair."""
    return isinstance(x, tf.RaggedTensor) or np.ndim(x) == 2


def texts_of_column(column: Any) -> list[Any]:
    """Returns what a column holds; bytes are texts."""
    if isinstance(column, tf.Tensor | tf.RaggedTensor):
        column = column.numpy()
    values: Sequence[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [_text(value) for value in list(values)]


def _of_texts(column: Any) -> bool:
    """Returns whether it is a column that begins with a text, none, or a row of texts."""
    if not (is_column(column) or _is_rows_of_texts(column)):
        return False
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
