"""Texts of pairs in the forms that Keras' users have them: columns, and batches of columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.data.formats.columns import KNOWN_NAMES, NEGATIVE
from tfde.data.frames import columns_of, is_column, texts_of_column
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.read_pairs import NO_LABELS, is_number, read_pairs
from tfde.errors import ConfigError, require
from tfde.towers.input_failures import telling
from tfde.towers.pair_order import Order

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
    documents = texts_of_column(y)
    rule = f"the document of each query: {NO_LABELS}"
    require(not documents or not is_number(documents[0]), "y", rule, y)
    return texts_of_column(x), documents


def one_batch(x: Any, replicas: int) -> dict[str, Any]:
    """Returns pairs as one batch, as `PairBatches` says.

    Args:
        x: What `tfde.pairs` takes in memory; or a batch of `tfde.pairs(...)`.
        replicas: How many share its rows.

    Raises:
        ConfigError: it is none of these, or its rows cannot be shared out evenly.
    """
    if not (isinstance(x, Mapping) and "document_key" in x):
        table = read_pairs(x, argument="x")
        size, negatives = len(table), table.max_negatives
        data = PairDataset(table, batch_size=size, negatives_per_query=negatives, shuffle=False)
        x = data.batch(0)
    rows = len(x["query"])
    require(rows % replicas == 0, "x", f"a multiple of the {replicas} replicas", f"{rows} pairs")
    return dict(x)


def streamed_strings(x: Any, *, order: Order | None = None) -> tuple[Any, tf.data.Dataset | None]:
    """Returns `x` as it was before it was looked at, and the batches of strings that it yields.

    Args:
        order: Of a `PyDataset`'s batches, another in each epoch, as in Keras; `None`: their own.
        x: A `keras.utils.PyDataset` or a generator whose elements are batches of columns, as
            `columns_of` says. A generator is read once. All else yields none.
    """
    if isinstance(x, keras.utils.PyDataset):
        return x, _dataset_of(lambda: _epoch(x, order), _columns_of_batch(x[0]))
    if not isinstance(x, Iterator):
        return x, None
    first = next(x, None)
    x = itertools.chain([] if first is None else [first], x)
    if first is None or columns_of("x", first) is None:
        of_rows = isinstance(first, list) and all(isinstance(row, list | tuple) for row in first)
        require(not of_rows, "x", f"single pairs, or batches: {_RULE}", first)
        return x, None
    return x, _dataset_of(lambda: x, _columns_of_batch(first))


def _epoch(x: keras.utils.PyDataset, order: Order | None) -> Iterator[Any]:
    x.on_epoch_begin()
    steps = x.num_batches
    places: Iterable[int] = itertools.count() if steps is None else range(steps)
    if order is not None and steps is not None:
        random = np.random.default_rng([order.seed, order.next_pass()])
        places = random.permutation(steps).tolist()
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
    columns = columns_of("x", x)
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
