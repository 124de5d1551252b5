"""The bodies of answers: tensors, classes, regressions and errors in TensorFlow Serving's JSON.

Source: behaviour of TensorFlow Serving's util/json_tensor.cc.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, regression_pb2

from tfde.serving.server.status import invalid_argument
from tfde.serving.server.tensors import dtype_name

Format = Literal["row", "column"]

_DIGITS = {np.dtype(np.float32): 9, np.dtype(np.float64): 17}  # that hold every value


def write_outputs(outputs: Mapping[str, np.ndarray], answer_format: Format) -> bytes:
    """Returns the body that answers with `outputs`.

    Raises:
        StatusError: INVALID_ARGUMENT, rows were asked for and the outputs have none in common,
            there is no output, or a type has no JSON form.
    """
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    arrays = dict(sorted(outputs.items()))
    if answer_format == "column":
        columns = {
            name: _nested(_leaves(name, array), array.shape) for name, array in arrays.items()
        }
        return _body("outputs", _together(columns))
    rows = -1
    for name, array in arrays.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {name} has no shape information ")
        if rows not in (-1, len(array)):
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows}"
            )
        rows = len(array)
    parts = [_rows(name, array) for name, array in arrays.items()]
    texts = [_together(dict(zip(arrays, row, strict=True))) for row in zip(*parts, strict=True)]
    return _body("predictions", _list(texts))


def write_classifications(result: classification_pb2.ClassificationResult) -> bytes:
    """Returns the body with `[label, score]` for each class of each example."""
    examples = []
    for classifications in result.classifications:
        scores = _decimals(np.array([entry.score for entry in classifications.classes], np.float32))
        labels = [_quoted(entry.label) for entry in classifications.classes]
        examples.append(_list([_list(pair) for pair in zip(labels, scores, strict=True)]))
    return _body("results", _list(examples))


def write_regressions(result: regression_pb2.RegressionResult) -> bytes:
    """Returns the body with one number for each example."""
    values = np.array([regression.value for regression in result.regressions], np.float32)
    return _body("results", _list(_decimals(values)))


def write_error(message: str) -> bytes:
    """Returns the body that carries an error."""
    # What it quotes of a request may be no UTF-8.
    text = message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _body("error", _quoted(text))


def _body(key: str, text: str) -> bytes:
    # Bytes of strings that are no UTF-8 go out as they came in.
    return f'{{\n    "{key}": {text}\n}}'.encode("utf-8", "surrogateescape")


def _rows(name: str, array: np.ndarray) -> list[str]:
    """Returns the text of each row."""
    if not array.size:
        return [json.dumps(row.tolist()) for row in array]
    leaves = _leaves(name, array)
    step = len(leaves) // len(array)
    starts = range(0, len(leaves), step)
    return [_nested(leaves[start : start + step], array.shape[1:]) for start in starts]


def _nested(leaves: Sequence[str], shape: Sequence[int]) -> str:
    """Returns lists in lists of this shape."""
    if not shape:
        return leaves[0]
    if not leaves:
        return json.dumps(np.empty(shape).tolist())
    for size in reversed(shape):
        leaves = [_list(leaves[at : at + size]) for at in range(0, len(leaves), size)]
    return leaves[0]


def _leaves(name: str, array: np.ndarray) -> list[str]:
    """Returns the text of each element, in order."""
    kind = array.dtype.kind
    if kind in "OSU":
        write = _base64_object if name.endswith("_bytes") else _string
        return [write(value) for value in array.ravel().tolist()]
    if array.dtype in _DIGITS:
        return _decimals(array)
    if kind == "b":
        return ["true" if value else "false" for value in array.ravel().tolist()]
    if kind in "iu":
        return list(map(str, array.ravel().tolist()))
    raise invalid_argument(
        "Failed to write JSON value for tensor type: ",
        dtype_name(tf.dtypes.as_dtype(array.dtype)),
    )


def _decimals(array: np.ndarray) -> list[str]:
    """Returns floats with six digits where these are all of it, else with all digits."""
    flat = array.ravel()
    values = flat.tolist()
    texts = [f"{value:.6g}" for value in values]
    with np.errstate(over="ignore"):
        back = np.array(list(map(float, texts)), np.float64).astype(array.dtype)
    for at in np.flatnonzero(back != flat):
        texts[at] = f"{values[at]:.{_DIGITS[array.dtype]}g}"
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    # A point or an exponent tells a float from an integer.
    return [
        names.get(text) or (text if "." in text or "e" in text else f"{text}.0") for text in texts
    ]


def _string(value: bytes | str) -> str:
    return _quoted(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value)


def _base64_object(value: bytes | str) -> str:
    raw = value if isinstance(value, bytes) else value.encode()
    return f'{{"b64": "{base64.b64encode(raw).decode()}"}}'


def _together(columns: Mapping[str, str]) -> str:
    """Returns an object, or its one value for a single name."""
    if len(columns) == 1:
        return next(iter(columns.values()))
    members = (f"{_quoted(name)}: {text}" for name, text in columns.items())
    return f"{{{', '.join(members)}}}"


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(texts)}]"


def _quoted(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)
