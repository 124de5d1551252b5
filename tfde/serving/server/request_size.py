"""Whether the tensors of a request are within the limits: before they are made, and after."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tfde.errors import utf8_fault
from tfde.serving.server.limits import Limits
from tfde.serving.server.status import invalid_argument

_STRING = tf.string.as_datatype_enum
_STRING_BYTES = 24  # of a string in TensorFlow, besides its content


def check_protos(protos: Mapping[str, tensor_pb2.TensorProto], limits: Limits) -> None:
    """Refuses tensors of which a few bytes stand for many: one value may be repeated.

    Raises:
        StatusError: INVALID_ARGUMENT, they have more bytes together than a request may have.
    """
    _check_bytes(sum(map(_expanded_bytes, protos.values())), limits)


def check_strings(arrays: Mapping[str, np.ndarray], limits: Limits) -> None:
    """Refuses too many strings, and those that are too long.

    Args:
        arrays: A request's inputs.
        limits: How many strings, and how long.

    Raises:
        StatusError: INVALID_ARGUMENT, which input, the rule and the number.
    """
    if not (limits.max_texts or limits.max_text_bytes):
        return
    for name, array in arrays.items():
        if array.dtype.kind in "OSU":
            check_text_count(name, array.size, limits)
            for number, text in enumerate(array.ravel()):
                check_text_bytes(f"{name}.{number}", len(text), limits)


def encoded_texts(name: str, texts: Sequence[str], limits: Limits) -> np.ndarray:
    """Returns texts as a model takes them, (N,) object, of bytes.

    Args:
        name: What the request calls them.
        texts: Texts from outside.
        limits: How many, and how long.

    Raises:
        StatusError: INVALID_ARGUMENT: too many, one is too long, or one cannot be written in UTF-8.
    """
    check_text_count(name, len(texts), limits)
    found = np.empty(len(texts), object)
    for number, text in enumerate(texts):
        where = name if len(texts) == 1 else f"{name}.{number}"
        if (fault := utf8_fault(text)) is not None:
            raise invalid_argument(
                f"`{where}` must be text that UTF-8 can write. Received: one with {fault}"
            )
        found[number] = text.encode()
        check_text_bytes(where, len(found[number]), limits)
    return found


def check_text_count(name: str, count: int, limits: Limits) -> None:
    """Refuses more strings than a request may have.

    Raises:
        StatusError: INVALID_ARGUMENT.
    """
    _check(f"`{name}`", count, limits.max_texts, "strings (--max_texts)")


def check_text_bytes(name: str, size: int, limits: Limits) -> None:
    """Refuses a string that is too long: tokenizers take time that grows with it.

    Raises:
        StatusError: INVALID_ARGUMENT.
    """
    _check(f"`{name}`", size, limits.max_text_bytes, "bytes (--max_text_bytes)")


def check_examples(count: int, size: int, context: int, limits: Limits) -> None:
    """Refuses examples that are too many, or too large once each has the context.

    Args:
        count: How many they are.
        size: Bytes of them all.
        context: Bytes of the context, which goes into each.
        limits: How many, and how many bytes.

    Raises:
        StatusError: INVALID_ARGUMENT.
    """
    check_text_count("examples", count, limits)
    _check_bytes(size + count * context, limits)


def _check_bytes(size: int, limits: Limits) -> None:
    _check("the inputs", size, limits.max_request_bytes, "bytes as tensors (--max_request_bytes)")


def _check(what: str, received: int, most: int, of: str) -> None:
    if most and received > most:
        raise invalid_argument(f"{what} must have at most {most} {of}. Received: {received}")


def _expanded_bytes(proto: tensor_pb2.TensorProto) -> int:
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or (sizes and min(sizes) < 0):
        return 0  # no tensor, which is told where it is made
    elements = math.prod(max(size, 1) for size in sizes)  # rows without numbers are rows too
    if proto.dtype == _STRING:
        values = proto.string_val
        repeated = max(0, elements - len(values)) * len(values[-1]) if values else 0
        content = sum(map(len, values)) + repeated + len(proto.tensor_content)
        return content + max(elements, len(values)) * _STRING_BYTES
    return elements * _size_of(proto.dtype)


@functools.lru_cache(maxsize=64)  # a client may name any number
def _size_of(dtype: int) -> int:
    """Returns the bytes of an element; 0 of no type."""
    try:
        return int(tf.dtypes.as_dtype(dtype).size)
    except TypeError:
        return 0
