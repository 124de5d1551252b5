"""JSON bodies of `:classify` and `:regress` to examples.

Source: behaviour of TensorFlow Serving's util/json_tensor.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import input_pb2

from tfde.serving.server.json_values import (
    decode_base64,
    format_error,
    is_base64,
    kind_of,
    proto_name,
    string_bytes,
    to_float,
)
from tfde.serving.server.status import invalid_argument

_INT64_MAX = 2**63 - 1
_WHOLE = range(-(2**63), 2**64)  # what JSON's reader takes for an integer
_TYPES = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def read_examples(document: Mapping[str, Any], into: input_pb2.Input) -> None:
    """Fills a request's input with its `examples` and, if there is one, their `context`.

    Raises:
        StatusError: INVALID_ARGUMENT, what is wrong with them.
    """
    has_context = "context" in document
    examples = into.example_list
    if has_context:
        examples = into.example_list_with_context
        _fill_example(examples.context, document["context"])
    if "examples" not in document:
        raise format_error(
            document, "When method is classify, key 'examples' is expected and was not found"
        )
    given = document["examples"]
    if not isinstance(given, list):
        raise format_error(document, "Expecting 'examples' value to be an list/array")
    if not given:
        raise format_error(document, "'examples' value is an empty array")
    for value in given:
        _fill_example(examples.examples.add(), value)


def _fill_example(example: example_pb2.Example, value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid_argument("Example must be JSON object but got JSON ", kind_of(value))
    for key, content in value.items():
        name = proto_name(key)
        feature = example.features.feature[name]
        for element in content if isinstance(content, list) else [content]:
            _add(feature, name, element)


def _add(feature: feature_pb2.Feature, name: str, value: Any) -> None:
    if isinstance(value, bool):
        _values(feature, name, "int64_list").append(int(value))
    elif isinstance(value, str):
        _values(feature, name, "bytes_list").append(string_bytes(value))
    elif is_base64(value):
        _values(feature, name, "bytes_list").append(decode_base64(value))
    elif isinstance(value, float) or (isinstance(value, int) and value not in _WHOLE):
        # Beyond the integers a number is a float; beyond the floats it is infinite.
        with np.errstate(over="ignore"):
            _values(feature, name, "float_list").append(float(np.float32(to_float(value))))
    elif isinstance(value, int):
        if value > _INT64_MAX:
            raise invalid_argument(
                f"Feature: {name} has uint64_t element. Only int64_t is supported."
            )
        _values(feature, name, "int64_list").append(value)
    else:
        raise invalid_argument(
            f"Feature: {name} has element with unexpected JSON type: {kind_of(value)}"
        )


def _values(feature: feature_pb2.Feature, name: str, kind: str) -> Any:
    """Returns the list for a kind of value; a feature holds only one kind."""
    there = feature.WhichOneof("kind")
    if there not in (None, kind):
        raise invalid_argument(
            f"Unexpected element type in feature: {name} expecting type: {_TYPES[there]}"
        )
    return getattr(feature, kind).value
