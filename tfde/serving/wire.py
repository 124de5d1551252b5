"""TensorFlow Serving's messages and stubs, imported without TensorFlow.

The generated modules of tensorflow-serving-api import `tensorflow.core.framework.tensor_pb2`
and its like, which need nothing of TensorFlow, but importing them runs `tensorflow/__init__.py`:
4.4 s instead of 0.1 s. So while they load, an empty package stands where TensorFlow would.
Afterwards it is taken away, and a later `import tensorflow` is a full one (message classes
belong to protobuf's descriptor pool: both imports see the same).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np

_API = "tensorflow_serving.apis"
# Source: tensorflow/core/framework/types.proto.
_DT_FLOAT, _DT_INT32, _DT_STRING = 1, 3, 7


def _import_stubs() -> list[ModuleType]:
    names = [
        f"{_API}.{name}"
        for name in (
            "predict_pb2",
            "get_model_status_pb2",
            "prediction_service_pb2_grpc",
            "model_service_pb2_grpc",
        )
    ]
    if "tensorflow" in sys.modules:
        return [importlib.import_module(name) for name in names]
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("the client needs tensorflow's protobuf messages: pip install tensorflow")
    package = ModuleType("tensorflow")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["tensorflow"] = package
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
            del sys.modules[name]


predict_pb2: Any
get_model_status_pb2: Any
prediction_service_pb2_grpc: Any
model_service_pb2_grpc: Any
(
    predict_pb2,
    get_model_status_pb2,
    prediction_service_pb2_grpc,
    model_service_pb2_grpc,
) = _import_stubs()


def put_strings(proto: Any, texts: list[str]) -> None:
    """Fills a TensorProto with strings, shape (len(texts),)."""
    proto.dtype = _DT_STRING
    proto.tensor_shape.dim.add(size=len(texts))
    proto.string_val.extend(text.encode("utf-8") for text in texts)


def put_int32(proto: Any, value: int) -> None:
    """Fills a TensorProto with one number, shape ()."""
    proto.dtype = _DT_INT32
    proto.tensor_shape.SetInParent()
    proto.int_val.append(value)


def strings(proto: Any) -> np.ndarray:
    """Returns the strings of a TensorProto as an object array of `str`."""
    values = np.array([value.decode("utf-8", "replace") for value in proto.string_val], object)
    return values.reshape(_shape(proto))


def floats(proto: Any) -> np.ndarray:
    """Returns the float32 values of a TensorProto."""
    if proto.dtype != _DT_FLOAT:
        raise ValueError(f"the tensor must be float32. Received: type number {proto.dtype}")
    if proto.tensor_content:
        values = np.frombuffer(proto.tensor_content, "<f4")
    else:
        values = np.fromiter(proto.float_val, np.float32, len(proto.float_val))
    return values.reshape(_shape(proto))


def _shape(proto: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in proto.tensor_shape.dim)
