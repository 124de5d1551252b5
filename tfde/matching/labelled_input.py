"""Labelled pairs in the forms that Keras' users have them."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfde.data.formats.labelled_pairs import GLUE_COLUMNS
from tfde.data.frames import is_column, rows_of_frame, texts_of_column
from tfde.data.pairs.labelled import LabelledPairs
from tfde.errors import ConfigError, DataError, require, shorten, utf8_fault
from tfde.towers.pair_input import check_rows
from tfde.types import Document

_PLACE = Path("pairs")
_COLUMNS = [("first", "second", "label"), *GLUE_COLUMNS.values()]
_RULE = "(first, second, label), ((first, second), label) or a mapping of these"


def labelled_pairs(
    x: Any, y: Any = None, *, labels: Sequence[str] = (), num_labels: int = 1
) -> LabelledPairs:
    """Returns pairs in memory with their labels.

    Args:
        x: `LabelledPairs`; a list of `(first, second, label)` or `((first, second), label)`; of
            mappings, or a pandas frame, with `first`, `second` and `label` or GLUE's columns; with
            `y`, a list of `(first, second)`. A second text may be a `tfde.Document`.
            `(firsts, seconds)`, two columns of texts, which may have the names of a frame's; as a
            list too, as Keras has its inputs, but of two pairs, which are rows.
        y: The labels, where `x` has none.
        labels: The names of a model's labels, in their order.
        num_labels: Of several, a label must be the number or the name of one.

    Raises:
        ConfigError: there is no pair; `x` is none of these.
        DataError: a row is none of these, or its label is none; its number, from 1, is named.
    """
    if isinstance(x, LabelledPairs):
        return x
    first: list[str] = []
    titles: list[str] = []
    texts: list[str] = []
    values: list[float] = []
    for number, row in enumerate(_rows(x, y), start=1):
        one, other, label = _parts(row, number)
        title, text = (other.title, other.text) if isinstance(other, Document) else ("", other)
        for place, part in (("first", one), ("second", text)):
            if not isinstance(part, str):
                raise DataError(_PLACE, number, f"the {place} of a pair must be a text.", part)
        if faults := [fault for part in (one, title, text) if (fault := utf8_fault(part))]:
            raise DataError(_PLACE, number, "texts must be such that UTF-8 can write.", faults[0])
        first.append(one)
        titles.append(title)
        texts.append(text)
        values.append(_value(label, number, labels=labels, num_labels=num_labels))
    require(bool(first), "x", "pairs, at least one", [])
    return LabelledPairs(first, titles, texts, np.array(values, np.float32), tuple(labels))


class LabelRules(NamedTuple):
    """What labels a model learns from.

    Args:
        labels: Their names, in the order of the logits; may be empty.
        num_labels: Logits of a pair.
        binary: Whether one logit is learned from by its sigmoid.
    """

    labels: tuple[str, ...]
    num_labels: int
    binary: bool

    def of_pairs(self, x: Any, y: Any) -> LabelledPairs:
        """Returns what `labelled_pairs` does.

        Raises:
            ConfigError, DataError: as that and `check_binary`.
        """
        pairs = labelled_pairs(x, y, labels=self.labels, num_labels=self.num_labels)
        if self.binary:
            check_binary(pairs)
        return pairs

    def of_numbers(self, given: tf.Tensor) -> tf.Tensor:
        """Returns labels of a dataset, (B,) float32, as those of pairs in memory (graph ops).

        Raises:
            tf.errors.InvalidArgumentError: when it runs, a label that is none.
        """
        names = [float(name) for name in self.labels if _is_number(name)]
        found = given
        if names and len(names) == len(self.labels) and names != [*map(float, range(len(names)))]:
            same = given[:, tf.newaxis] == tf.constant(names)
            found = tf.where(tf.reduce_any(same, 1), tf.cast(tf.argmax(same, 1), given.dtype), -1.0)
        elif self.num_labels == 1 and not self.binary:
            return given
        most = 1 if self.num_labels == 1 else self.num_labels - 1
        fits = (found >= 0) & (found <= most)
        if self.num_labels > 1:
            fits &= found == tf.round(found)
        rule = f"one of {', '.join(self.labels)}" if names else f"a number from 0 to {most}"
        message = f"a label must be {rule}."
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message, given])]):
            return tf.identity(found)


def _is_number(name: str) -> bool:
    try:
        return bool(np.isfinite(float(name)))
    except ValueError:
        return False


def check_binary(pairs: LabelledPairs) -> None:
    """Refuses labels that one logit cannot be learned from by its sigmoid.

    Raises:
        DataError: a label is not in [0, 1]; its row, from 1, is named.
    """
    wrong = np.flatnonzero((pairs.labels < 0) | (pairs.labels > 1))
    if len(wrong):
        rule = "a label must be in [0, 1] for one logit; others want a loss of their own (mse)."
        raise DataError(_PLACE, int(wrong[0]) + 1, rule, float(pairs.labels[wrong[0]]))


def labelled_strings(
    x: tf.data.Dataset, rules: LabelRules, *, batch_size: int, replicas: int = 1
) -> tf.data.Dataset:
    """Returns a dataset of strings and numbers as batches of `first`, `title`, `text`, `label`.

    Args:
        x: Elements `((first, second), label)`, `(first, second, label)`, or dicts of these, single
            or in batches.
        rules: Of the labels, which are numbers.
        batch_size: Of single ones.
        replicas: How many share the rows of a batch; with several, single elements that fill no
            batch are left out.

    Raises:
        ConfigError: its elements are none of these; rows that cannot be shared out evenly.
    """

    def named(*parts: Any) -> dict[str, tf.Tensor]:
        flat = parts[0] if len(parts) == 1 else dict(zip(_COLUMNS[0], tf.nest.flatten(parts)))  # noqa: B905
        if len(parts) == 2 and isinstance(parts[0], Mapping):
            flat = {**parts[0], "label": parts[1]}
        return {name: tf.convert_to_tensor(part) for name, part in flat.items()}

    count = len(tf.nest.flatten(x.element_spec))
    batches = x.map(named) if count == 3 else x
    spec = batches.element_spec
    fits = isinstance(spec, Mapping) and set(spec) == set(_COLUMNS[0])
    fits = fits and spec["first"].dtype == spec["second"].dtype == tf.string != spec["label"].dtype
    require(fits, "x", f"a dataset of {_RULE}, of strings and a number", x.element_spec)
    rows = batch_size
    if spec["first"].shape.rank == 0:
        batches = batches.batch(batch_size, drop_remainder=replicas > 1)
    else:
        rows = spec["first"].shape[0] or 0  # 0: it is not known before
    check_rows("x", rows, rows, replicas)
    return batches.map(
        lambda row: {
            "first": row["first"],
            "title": tf.fill(tf.shape(row["first"]), ""),
            "text": row["second"],
            "label": rules.of_numbers(tf.cast(tf.reshape(row["label"], [-1]), tf.float32)),
        }
    )


def columns_of(pairs: LabelledPairs) -> dict[str, Any]:
    """Returns pairs as one batch of `first`, `title`, `text` and `label`, (P,) each."""
    texts = {"first": pairs.first, "title": pairs.titles, "text": pairs.texts}
    return {**{name: np.array(part, object) for name, part in texts.items()}, "label": pairs.labels}


def _rows(x: Any, y: Any) -> Iterator[Any]:
    if y is not None:
        x = _without_labels(x, rows=len(y) if hasattr(y, "__len__") else None)
    else:
        table = rows_of_frame(x)
        x = x if table is None else table
    if isinstance(x, str | Mapping) or not isinstance(x, Iterable):
        raise ConfigError(f"`x` must be a list of {_RULE}, or a frame. Received: {shorten(x)}")
    if y is None:
        return iter(x)
    pairs, values = list(x), list(y)
    require(len(pairs) == len(values), "y", f"a label for each of {len(pairs)} pairs", len(values))
    return zip(pairs, values, strict=True)


def _without_labels(x: Any, *, rows: int | None) -> Any:
    """Returns the rows of two columns, and what has no columns as it is."""
    if isinstance(x, list) and len(x) == 2 and rows != 2:
        x = tuple(x)
    if isinstance(x, np.ndarray):
        return x.tolist()
    table = rows_of_frame(x)
    if table is not None:
        cells = list(table)
        x = {name: [row[name] for row in cells] for name in cells[0]} if cells else x
    if isinstance(x, Mapping):
        known = [names[:2] for names in _COLUMNS]
        names = next((pair for pair in known if set(pair) <= set(x)), None)
        rule = "of columns `first` and `second`, or of GLUE's names"
        if names is None:
            raise ConfigError(f"`x` must be {rule}. Received: {list(x)}")
        x = x[names[0]], x[names[1]]
    if not isinstance(x, tuple) or len(x) != 2 or not all(map(is_column, x)):
        return x
    first, second = map(texts_of_column, x)
    lengths = [len(first), len(second)]
    require(lengths[0] == lengths[1], "x", "of columns of one length", lengths)
    return list(zip(first, second, strict=True))


def _parts(row: Any, number: int) -> tuple[Any, Any, Any]:
    if isinstance(row, Mapping):
        names = next((names for names in _COLUMNS if set(names) <= set(row)), None)
        if names is not None:
            return row[names[0]], row[names[1]], row[names[2]]
    elif isinstance(row, tuple | list):
        nested = len(row) == 2 and isinstance(row[0], tuple | list)
        parts = [*row[0], row[1]] if nested else list(row)
        if len(parts) == 3:
            return parts[0], parts[1], parts[2]
    raise DataError(_PLACE, number, f"a row must be {_RULE}.", row)


def _value(label: Any, number: int, *, labels: Sequence[str], num_labels: int) -> float:
    written = [str(label)]  # names may be numbers, of which pandas makes fractions
    if isinstance(label, numbers.Real) and float(label).is_integer():
        written.append(str(int(float(label))))
    for name in written:
        if name in labels:
            return float(labels.index(name))
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = np.nan
    # A number is a place, but not where names are numbers too: 1 would be the second of "0", "2".
    places = not any(name.lstrip("+-").isdecimal() for name in labels)
    whole = num_labels == 1 or (places and value in range(num_labels))
    if np.isfinite(value) and whole:
        return value
    rule = "a number" if num_labels == 1 else f"a number from 0 to {num_labels - 1}"
    names = f", or one of {', '.join(labels)}" if labels else ""
    raise DataError(_PLACE, number, f"a label must be {rule}{names}.", label)


def batched(columns: Mapping[str, Any], size: int) -> tf.data.Dataset:
    """Returns all rows of columns in their order, the last batch perhaps smaller."""
    rows = {
        name: tf.constant(list(part), tf.string if part.dtype == object else tf.float32)
        for name, part in columns.items()
    }
    return tf.data.Dataset.from_tensor_slices(rows).batch(size)
