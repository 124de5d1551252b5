"""The client's own reading and writing of tensors, against TensorFlow's."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfde.serving import wire
from tfde.serving.server.tensors import to_array, to_proto


def tensor():
    return wire.predict_pb2.PredictRequest().inputs["x"]


def test_strings_and_numbers_are_tensorflows():
    proto = tensor()
    wire.put_strings(proto, ["é", ""])
    assert tf.make_ndarray(proto).tolist() == ["é".encode(), b""]
    proto = tensor()
    wire.put_strings(proto, [])
    assert tf.make_ndarray(proto).shape == (0,)
    proto = tensor()
    wire.put_int32(proto, 7)
    assert tf.make_ndarray(proto) == np.int32(7)
    assert tf.make_ndarray(proto).dtype == np.int32


def test_reads_typed_fields_and_content():
    values = np.array([[0.1, -2, np.inf]], np.float32)
    content = tf.make_tensor_proto(values)
    assert content.tensor_content
    np.testing.assert_array_equal(wire.floats(content), values)
    fields = to_proto(values, tf.float32)
    assert not fields.tensor_content
    np.testing.assert_array_equal(wire.floats(fields), values)
    texts = np.array([["é", "b"], ["", "c"]], object)
    assert wire.strings(tf.make_tensor_proto(texts)).tolist() == texts.tolist()
    with pytest.raises(ValueError, match=r"the tensor must be float32. Received: type number 3"):
        wire.floats(tf.make_tensor_proto([1, 2]))


@pytest.mark.parametrize(
    "dtype",
    [
        *(tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.bool, tf.complex64),
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_server_tensors_keep_type_shape_and_values(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.as_numpy_dtype)
    back = to_array("x", to_proto(array, dtype))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


IMPORTS = """
import sys
import tfde.serving.client
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
from tfde.serving import wire
request = wire.predict_pb2.PredictRequest()
wire.put_strings(request.inputs["x"], ["a"])
import tensorflow as tf  # a real one, although its messages were imported before
from tensorflow_serving.apis import predict_pb2
assert tf.make_ndarray(request.inputs["x"]).tolist() == [b"a"]
assert predict_pb2.PredictRequest is wire.predict_pb2.PredictRequest
request.inputs["y"].CopyFrom(tf.make_tensor_proto([1.0]))
assert tf.function(lambda x: x + 1)(tf.constant(1)).numpy() == 2
"""


def test_importing_the_client_does_without_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["export", "serve", "query", "verify"])
def test_parsers_do_without_tensorflow(command):
    code = (
        f"import sys; from tfde.cli.{command} import build_parser; build_parser();"
        " assert 'tensorflow' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
