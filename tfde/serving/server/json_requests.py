"""JSON bodies to arrays (`:predict`) and examples (`:classify`, `:regress`).

Source: behaviour and words of TensorFlow Serving's util/json_tensor.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import input_pb2

from tfde.serving.server.json_answers import Format
from tfde.serving.server.json_values import (
    decode_base64,
    format_error,
    is_base64,
    is_object,
    kind_of,
    proto_name,
    string_bytes,
    to_float,
    to_text,
)
from tfde.serving.server.status import StatusError, invalid_argument
from tfde.serving.server.tensors import dtype_name

TensorInfos = Mapping[str, meta_graph_pb2.TensorInfo]
_MAX_DIMS = 64  # NumPy's limit
_INTEGERS = {tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint32, tf.uint64}
# A JSON number for any of the small types only has to be an int32.
_BOUNDS = {tf.int64: tf.int64, tf.uint32: tf.uint32, tf.uint64: tf.uint64}
_INT64_MAX = 2**63 - 1
_WHOLE = range(-(2**63), 2**64)  # what JSON's reader takes for an integer
_TYPES = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def read_inputs(
    document: Mapping[str, Any], infos: TensorInfos
) -> tuple[dict[str, np.ndarray], Format]:
    """Returns the arrays of a request and the format its answer must have.

    Args:
        document: The parsed body, with `instances` (rows) or `inputs` (columns).
        infos: What the signature takes.

    Raises:
        StatusError: INVALID_ARGUMENT, what it says.
    """
    infos = dict(infos)  # a message's own map cannot be asked for names that are no UTF-8
    if "instances" in document and "inputs" in document:
        raise format_error(
            document,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ",
        )
    if "instances" in document:
        instances = document["instances"]
        if not isinstance(instances, list):
            raise format_error(document, "Expecting 'instances' to be an list/array")
        if not instances:
            raise format_error(document, "No values in 'instances' array")
        return _read_rows(instances, infos), "row"
    if "inputs" in document:
        return _read_columns(document["inputs"], infos), "column"
    raise invalid_argument("Missing 'inputs' or 'instances' key")


def _read_rows(instances: list[Any], infos: TensorInfos) -> dict[str, np.ndarray]:
    if not isinstance(instances[0], dict) and len(infos) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors"
            " required as per tensorinfo_map"
        )
    named = is_object(instances[0])
    rows: dict[str, list[np.ndarray]] = {}
    for position, element in enumerate(instances):
        if named and not is_object(element):
            raise invalid_argument(
                f"Expecting object but got list at item {position} of input list"
            )
        if not named and is_object(element):
            raise invalid_argument(
                f"Expecting value/list but got object at item {position} of input list"
            )
        for name, value in element.items() if named else [(next(iter(infos)), element)]:
            key = f" key: {name}" if named else ""
            try:
                _add_row(rows.setdefault(name, []), name, value, infos)
            except StatusError as error:
                raise invalid_argument(
                    f"Failed to process element: {position}{key} of 'instances' list."
                    f" Error: {error.code.name}: {error.message}"
                ) from None
        if named and set(element) != set(infos):
            raise invalid_argument(
                f"Failed to process element: {position} of 'instances' list. JSON object:"
                f" {to_text(element)} keys must be equal to: {','.join(sorted(infos))}"
            )
    return {name: np.stack(values) for name, values in rows.items()}


def _add_row(rows: list[np.ndarray], name: str, value: Any, infos: TensorInfos) -> None:
    if name not in infos:
        raise invalid_argument("JSON object: does not have named input: ", name)
    row = _to_array(value, tf.dtypes.as_dtype(infos[name].dtype))
    if rows and rows[0].size != row.size:
        raise invalid_argument(f"Expecting tensor size: {rows[0].size} but got: {row.size}")
    if rows and rows[0].shape != row.shape:
        raise invalid_argument(f"Expecting shape {_shape(rows[0])} but got: {_shape(row)}")
    rows.append(row)


def _read_columns(inputs: Any, infos: TensorInfos) -> dict[str, np.ndarray]:
    if not is_object(inputs):
        if len(infos) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors"
                " required as per tensorinfo_map"
            )
        inputs = {next(iter(infos)): inputs}
    arrays = {}
    for name, info in sorted(infos.items()):
        if name not in inputs:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
        arrays[name] = _to_array(inputs[name], tf.dtypes.as_dtype(info.dtype))
    return arrays


def _to_array(value: Any, dtype: tf.DType) -> np.ndarray:
    """Returns the dense array of a nested list; its shape is that of its first elements."""
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > _MAX_DIMS:
        raise invalid_argument(f"Encountered list at unexpected level: {len(shape) - 1}")
    leaves: list[Any] = []
    _collect(value, 0, shape, dtype, leaves)
    array = np.empty(len(leaves), dtype.as_numpy_dtype)
    with np.errstate(over="ignore"):  # what is too large for a float is infinite
        array[:] = leaves
    return array.reshape(shape)


def _collect(value: Any, level: int, shape: list[int], dtype: tf.DType, leaves: list[Any]) -> None:
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid_argument(
                f"JSON Value: {to_text(value)} found at incorrect level: {level + 1}"
                f" in the JSON DOM. Expected at level: {len(shape)}"
            )
        leaves.append(_leaf(value, dtype))
        return
    if level >= len(shape):
        raise invalid_argument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: {level}"
            f" expected size: {shape[level]}"
        )
    for element in value:
        _collect(element, level + 1, shape, dtype, leaves)


def _leaf(value: Any, dtype: tf.DType) -> Any:
    if dtype == tf.string:
        if isinstance(value, dict):
            return decode_base64(value)
        if isinstance(value, str):
            return string_bytes(value)
    elif dtype == tf.bool:
        if isinstance(value, bool):
            return value
    elif dtype in _INTEGERS:
        bounds = _BOUNDS.get(dtype, tf.int32)
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and bounds.min <= value <= bounds.max
        ):
            return np.int64(value).astype(dtype.as_numpy_dtype) if bounds is tf.int32 else value
    elif dtype in (tf.float32, tf.float64):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return to_float(value)
    else:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"Conversion of JSON Value: {to_text(value)} to type: {dtype_name(dtype)}",
        )
    raise invalid_argument(
        f"JSON Value: {to_text(value)} Type: {kind_of(value)}"
        f" is not of expected type: {dtype_name(dtype)}"
    )


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


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
