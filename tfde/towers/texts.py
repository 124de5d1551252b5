"""Texts as people have them: one, a list, an array, a column, a dataset of strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.data.frames import rows_of_frame
from tfde.errors import ConfigError, require, shorten, utf8_fault
from tfde.types import CONTEXT, Document, Query


def elements_of(argument: str, value: Any, *, alone: tuple[type, ...]) -> tuple[list[Any], bool]:
    """Returns what a list or the like holds, and whether it was one element alone.

    Args:
        argument: What it is called.
        value: A text, bytes, or one of `alone`; a frame, where these are mappings; else a
            sequence, a generator, an array or tensor of one axis, a pandas Series, a
            `tf.data.Dataset` of strings, single or in batches.
        alone: What counts as one element.

    Raises:
        ConfigError: it is none of these, or a dataset that never ends.
    """
    rule = "a text, or texts: a list, an array of one axis, a column of a table, a dataset"
    if isinstance(value, (str, bytes, *alone)):
        return [value], True
    if isinstance(value, tf.data.Dataset):
        strings = getattr(value.element_spec, "dtype", None) == tf.string
        require(strings, argument, "a dataset of strings", value)
        endless = int(value.cardinality()) == tf.data.INFINITE_CARDINALITY
        require(not endless, argument, "a dataset that ends", value)
        return [text for batch in value.as_numpy_iterator() for text in np.ravel(batch)], False
    if isinstance(value, tf.Tensor):
        value = value.numpy()
        value = value if isinstance(value, np.ndarray) else np.array(value, object)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return [value.item()], True
    value = value.to_pylist() if hasattr(value, "to_pylist") else value  # pyarrow
    frame = rows_of_frame(value) if Mapping in alone else None
    if frame is not None:
        return list(frame), False
    # Of a table its columns' names would come, of a set any order.
    table = hasattr(value, "columns") or np.ndim(value) > 1 if hasattr(value, "shape") else False
    unordered = isinstance(value, Mapping | set | frozenset)
    require(isinstance(value, Iterable) and not table and not unordered, argument, rule, value)
    return list(value), False


def texts_of_steps(value: Any, steps: int | None, batch_size: int) -> Any:
    """Returns the texts of the first `steps` batches of what `elements_of` takes; `None`: of all.

    A dataset of batches has batches of its own.
    """
    if steps is None:
        return value
    require(steps >= 1, "steps", "at least 1", steps)
    if isinstance(value, tf.data.Dataset):
        single = value.element_spec.shape.rank == 0
        return (value.batch(batch_size) if single else value).take(steps)
    elements, alone = elements_of("x", value, alone=(Query,))
    return value if alone else elements[: steps * batch_size]


def is_texts(value: Any) -> bool:
    """Returns whether something holds texts, and no pairs of texts."""
    if isinstance(value, str | bytes | Query):
        return True
    if isinstance(value, tf.data.Dataset | tf.Tensor):
        return getattr(getattr(value, "element_spec", value), "dtype", None) == tf.string
    listed = hasattr(value, "__len__") and not hasattr(value, "columns")
    if not listed or isinstance(value, Mapping):
        return False
    return len(value) == 0 or isinstance(next(iter(value)), str | bytes | Query)


def query_text(query: Any) -> str:
    """Returns the text of what `encode_queries` takes.

    Raises:
        ConfigError: it is no text and no `tfde.Query`, or UTF-8 cannot write it.
    """
    return checked_text("texts", query.text if isinstance(query, Query) else query)


def texts_of_document(
    document: Any, fields: Sequence[str] = ("title", "text"), *, strict: bool = True
) -> tuple[str, ...]:
    """Returns the title (empty if there is none), text and so on of what `encode_documents` takes.

    Args:
        document: A text, a `tfde.Document`, or a mapping of texts.
        fields: What is wanted of it.
        strict: Whether a wanted `context` must be there, though perhaps empty.

    Raises:
        ConfigError: it is none of these, or a text cannot be written in UTF-8; a context is wanted
            and there is none.
    """
    found: dict[str, Any] = {}
    if isinstance(document, str | bytes):
        found = {"text": document}
    elif isinstance(document, Document):
        found = {"title": document.title, "text": document.text, CONTEXT: document.context}
    elif isinstance(document, Mapping):
        found = {name: document.get(name) for name in (*fields, "text")}
    if CONTEXT in fields and strict and found and found.get(CONTEXT) is None:
        raise ConfigError(
            "`documents` must have a `context`, which the model's template names; it may be empty."
            f" Received: {shorten(document)}"
        )
    texts = [found.get("text") if name == "text" else found.get(name) or "" for name in fields]
    if all(isinstance(text, str | bytes) for text in texts):
        return tuple(checked_text("documents", text) for text in texts)
    raise ConfigError(
        "`documents` must hold tfde.Document, strings, or mappings with a `text` (and a `title`)"
        f" of strings. Received: {shorten(document)}"
    )


def checked_text(argument: str, text: object) -> str:
    """Returns a text that an argument holds; bytes are UTF-8, as TensorFlow has strings.

    Raises:
        ConfigError: it is no string, or one that UTF-8 cannot write or read.
    """
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise ConfigError(
                f"`{argument}` must hold bytes of UTF-8. Received: {shorten(text)}"
            ) from None
    if not isinstance(text, str):
        raise ConfigError(f"`{argument}` must hold strings. Received: {shorten(text)}")
    if (fault := utf8_fault(text)) is not None:
        raise ConfigError(
            f"`{argument}` must hold texts that UTF-8 can write. Received: one with {fault}"
        )
    return text
