"""JSON values of requests and answers, with TensorFlow Serving's rules and words.

Source: behaviour of TensorFlow Serving's util/json_tensor.cc.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.serving.server.status import StatusError, invalid_argument

_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or } after an object member.",
    "Extra data": "The document root must not be followed by other values.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
}


def parse_body(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a request's body.

    Raises:
        StatusError: INVALID_ARGUMENT, no JSON object.
    """
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        reason = _PARSE_ERRORS.get(error.msg, f"{error.msg}.")
        raise invalid_argument(f"JSON Parse error: {reason} at offset: {error.pos}") from None
    except (UnicodeDecodeError, RecursionError):
        raise invalid_argument("JSON Parse error: Invalid value. at offset: 0") from None
    except ValueError:  # more digits than Python makes an integer of
        raise invalid_argument(
            "JSON Parse error: Number too big to be stored in double. at offset: 0"
        ) from None
    if not isinstance(value, dict):
        raise invalid_argument("JSON Value: ", to_text(value), " Is not object")
    return value


def signature_of(document: Mapping[str, Any]) -> str:
    """Returns the `signature_name` of a request, "" where it names none.

    Raises:
        StatusError: INVALID_ARGUMENT, it is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {to_text(document)} not formatted correctly."
            " 'signature_name' key must be a string value."
        )
    return name


def to_body(key: str, value: Any) -> bytes:
    """Returns the body `{key: value}`; bytes that are no UTF-8 go out as they came in."""
    text = f'{{\n    "{key}": {json.dumps(value, ensure_ascii=False)}\n}}'
    return text.encode("utf-8", "surrogateescape")


def error_body(message: str) -> bytes:
    """Returns the body that carries an error."""
    # A message may quote half a surrogate pair out of the request, which has no UTF-8.
    return to_body("error", message.encode("utf-8", "replace").decode())


def checked_decimal(value: float, dtype: tf.DType) -> float:
    """Returns a JSON number as a float.

    Raises:
        StatusError: INVALID_ARGUMENT, `dtype` cannot hold it.
    """
    largest_integer = (1 << (24 if dtype == tf.float32 else 53)) - 1
    lossy = (
        abs(value) > largest_integer
        if isinstance(value, int)
        else np.isfinite(value) and abs(value) > float(dtype.max)
    )
    if lossy:
        target = "float" if dtype == tf.float32 else "double"
        raise invalid_argument(
            f"Cannot convert JSON value: {to_text(value)} to {target} without loss of precision."
        )
    return float(value)


def decode_base64(value: dict[str, Any]) -> bytes:
    """Returns the bytes of `{"b64": ...}`.

    Raises:
        StatusError: INVALID_ARGUMENT, it is none.
    """
    if not is_base64(value):
        raise invalid_argument(
            f"JSON Value: {to_text(value)} not formatted correctly for base64 data"
        )
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError):
        raise invalid_argument("Unable to base64 decode") from None


def is_object(value: Any) -> bool:
    """Whether a value is an object that names things."""
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value: Any) -> bool:
    """Whether a value is the object that stands for bytes."""
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def format_error(document: Mapping[str, Any], rule: str) -> StatusError:
    """Returns the error that quotes a whole request."""
    return invalid_argument("JSON Value: ", to_text(document), " ", rule)


def to_text(value: Any) -> str:
    """Returns a value as an error message quotes it."""
    return json.dumps(value, indent=4, ensure_ascii=False)


def kind_of(value: Any) -> str:
    """Returns the name of a value's JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "Null", True: "True", False: "False"}[value]
    kinds: dict[type, str] = {dict: "Object", list: "Array", str: "String"}
    return kinds.get(type(value), "Number")
