"""A TFLite model in a TensorFlow graph: one op that runs the interpreter, between placeholders.

So signatures, checks, batching and errors are those of every other model.
Source: behaviour of TensorFlow Serving's tflite_session.cc.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from flatbuffers import flexbuffers
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.lite.python import schema_py_generated as schema

_SIGNATURES = b"signature_defs_metadata"

Signatures = dict[str, meta_graph_pb2.SignatureDef]


def add_tflite_model(path: str) -> Signatures:
    """Adds a model to the default graph.

    Args:
        path: The model's file. Its inputs take what shapes its ops take.

    Returns:
        The signatures that lie in the file; without any, one of all inputs and outputs.

    Raises:
        ValueError, RuntimeError, KeyError, tf.errors.OpError: the file cannot be read, is no
            model, or has a signature of tensors that it has not.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    model = _Model(content)
    inputs = {name: tf.compat.v1.placeholder(dtype) for name, (dtype, _) in model.inputs.items()}
    made = [dtype for dtype, _ in model.outputs.values()]
    results = tf.numpy_function(model.run, list(inputs.values()), made)
    results = results if isinstance(results, list) else [results]
    outputs = dict(zip(model.outputs, results, strict=True))
    signatures = _signatures_in(content)
    if not signatures:
        signature = signatures["serving_default"] = meta_graph_pb2.SignatureDef()
        signature.method_name = "tensorflow/serving/predict"
        for infos, details in (
            (signature.inputs, model.inputs),
            (signature.outputs, model.outputs),
        ):
            for name, (dtype, shape) in details.items():
                info = infos[_stem(name)]
                info.name, info.dtype = name, dtype.as_datatype_enum
                info.tensor_shape.CopyFrom(shape.as_proto())
    for signature in signatures.values():
        _name_tensors(signature.inputs, inputs)
        _name_tensors(signature.outputs, outputs)
    return signatures


class _Model:
    """An interpreter, which one request at a time may use."""

    def __init__(self, content: bytes) -> None:
        with warnings.catch_warnings():  # it is announced to move to a package of its own
            warnings.simplefilter("ignore")
            self._interpreter = tf.lite.Interpreter(model_content=content)
        self._lock = threading.Lock()
        self._shapes: list[tuple[int, ...]] = []
        self._given = self._interpreter.get_input_details()
        self._made = self._interpreter.get_output_details()
        self.inputs = {each["name"]: _type_and_shape(each) for each in self._given}
        self.outputs = {each["name"]: _type_and_shape(each) for each in self._made}

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        shapes = [array.shape for array in arrays]
        with self._lock:
            if shapes != self._shapes:
                self._shapes = []
                for each, shape in zip(self._given, shapes, strict=True):
                    self._interpreter.resize_tensor_input(each["index"], shape)
                self._interpreter.allocate_tensors()
                self._shapes = shapes
            for each, array in zip(self._given, arrays, strict=True):
                self._interpreter.set_tensor(each["index"], array)
            self._interpreter.invoke()
            return [self._interpreter.get_tensor(each["index"]) for each in self._made]


def _signatures_in(content: bytes) -> Signatures:
    model = schema.Model.GetRootAs(content)
    for metadata in map(model.Metadata, range(model.MetadataLength())):
        if metadata.Name() == _SIGNATURES:
            written = flexbuffers.GetRoot(model.Buffers(metadata.Buffer()).DataAsNumpy().tobytes())
            names, protos = written.AsMap.Keys, written.AsMap.Values
            return {
                name.AsKey: meta_graph_pb2.SignatureDef.FromString(proto.AsStringBytes)
                for name, proto in zip(names, protos, strict=True)
            }
    return {}


def _name_tensors(
    infos: Mapping[str, meta_graph_pb2.TensorInfo], tensors: Mapping[str, tf.Tensor]
) -> None:
    """Puts the graph's names in the place of the model's, which had no `:0` once."""
    for info in infos.values():
        info.name = tensors[info.name if info.name in tensors else _stem(info.name)].name


def _stem(name: str) -> str:
    return name.partition(":")[0]


def _type_and_shape(details: Mapping[str, Any]) -> tuple[tf.DType, tf.TensorShape]:
    kind = details["dtype"]
    sizes = [None if size < 0 else int(size) for size in details["shape_signature"]]
    return (tf.string if kind is np.bytes_ else tf.dtypes.as_dtype(kind)), tf.TensorShape(sizes)
