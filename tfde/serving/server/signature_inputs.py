"""What a request gives a signature: names, types and shapes, and what of its outputs is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.protobuf import meta_graph_pb2

from tfde.errors import shorten, utf8_fault
from tfde.serving.server.status import StatusError, invalid_argument
from tfde.serving.server.tensors import dtype_name


@contextmanager
def naming_shapes(
    signature: meta_graph_pb2.SignatureDef, inputs: Mapping[str, np.ndarray]
) -> Iterator[None]:
    """Adds, to what an op says of an input, the shapes that are not the signature's.

    A shape alone is no fault, as in TensorFlow Serving: some graphs take more than they say.
    """
    try:
        yield
    except StatusError as error:
        wrong = [
            f"{alias} must have the shape {_shape(given)}. Received: {_shape(array.shape)}"
            for alias, array in inputs.items()
            if not (
                given := tf.TensorShape(signature.inputs[alias].tensor_shape)
            ).is_compatible_with(array.shape)
        ]
        if error.code is not StatusCode.INVALID_ARGUMENT or not wrong:
            raise
        raise StatusError(error.code, f"{error.message}; {'; '.join(wrong)}") from error


def _shape(sizes: Any) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in sizes)})"


def fit(feeds: Mapping[tf.Tensor, np.ndarray]) -> bool:
    """Whether all arrays have the shapes that the signature names."""
    return all(tensor.shape.is_compatible_with(array.shape) for tensor, array in feeds.items())


def check_names(signature: meta_graph_pb2.SignatureDef, inputs: Mapping[str, Any]) -> None:
    """Refuses inputs that the signature has not, and others left out, in upstream's words."""
    sent, expected = set(inputs), set(signature.inputs)
    if len(sent) > len(expected) or (len(sent) < len(expected) and not signature.defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(expected)}"
            f" len({{{_join(sent)}}}) != len({{{_join(expected)}}})."
            f" Sent extra: {{{_join(sent - expected)}}}."
            f" Missing but required: {{{_join(expected - sent)}}}."
        )
    for alias in sorted(expected - sent - set(signature.defaults)):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {signature.inputs[alias].name})"
            " not found in request and no default value provided. Inputs expected to be in the"
            f" request {{{_join(sent)}}}, or default input alias set: {_join(signature.defaults)}"
        )


def encoded(alias: str, array: np.ndarray) -> np.ndarray:
    """Returns strings as the bytes that the session takes, before they stand beside others'."""
    if array.dtype.kind not in "OU":
        return array
    found = np.empty(array.size, object)
    for number, text in enumerate(array.ravel()):
        if not isinstance(text, bytes | str):
            raise invalid_argument(f"`{alias}` must hold strings. Received: {shorten(text)}")
        if isinstance(text, str) and (fault := utf8_fault(text)) is not None:
            raise invalid_argument(
                f"`{alias}` must hold texts that UTF-8 can write. Received: {fault}"
            )
        found[number] = text if isinstance(text, bytes) else text.encode()
    return found.reshape(array.shape)


def check_dtype(position: int, array: np.ndarray, expected: tf.DType) -> None:
    """Refuses an array of another type than the tensor's, in upstream's words."""
    # The session would cast; TensorFlow Serving refuses, with these words.
    received = tf.string if array.dtype.kind in "OSU" else tf.dtypes.as_dtype(array.dtype)
    if received != expected:
        raise invalid_argument(
            f"Expects arg[{position}] to be {dtype_name(expected)}"
            f" but {dtype_name(received)} is provided"
        )


def outputs_of(signature: meta_graph_pb2.SignatureDef, output_filter: Sequence[str]) -> list[str]:
    """Returns the outputs that are wanted; none named means all, sorted.

    Raises:
        StatusError: INVALID_ARGUMENT, the signature has no such output, or one is named twice.
    """
    for position, alias in enumerate(output_filter):
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias}"
                f" Outputs expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if alias in output_filter[:position]:
            raise invalid_argument("duplicate output tensor alias: ", alias)
    return list(output_filter) or sorted(signature.outputs)


def _join(names: Any) -> str:
    return ",".join(sorted(names))
