"""Requests' tensors as arrays: as TensorFlow itself reads them."""

import numpy as np
import pytest
import tensorflow as tf
from toy_models import repeated

from tfde.serving.server.status import StatusError
from tfde.serving.server.tensors import to_array, to_proto

TYPES = [
    tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64,
    tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64,
]  # fmt: skip


def assert_read_as_tensorflow_reads(proto):
    found, expected = to_array("x", proto), tf.make_ndarray(proto)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.flags.writeable
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_numbers(dtype):
    for shape in ((), (1,), (3,), (2, 3), (0, 3)):
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype.as_numpy_dtype)
        assert_read_as_tensorflow_reads(tf.make_tensor_proto(array, dtype))
        for as_content in (False, True):
            assert_read_as_tensorflow_reads(to_proto(array, dtype, as_content=as_content))
    assert_read_as_tensorflow_reads(repeated(np.ones(1, dtype.as_numpy_dtype), 2, 3))


@pytest.mark.parametrize(
    "texts", [[], [b"a"], [b"a", b"\0\xff"], [[b"a", b""], [b"b", b"c"]], b"a"]
)
def test_strings(texts):
    assert_read_as_tensorflow_reads(tf.make_tensor_proto(np.array(texts, object), tf.string))
    assert_read_as_tensorflow_reads(repeated(["red"], 3))


def test_what_is_no_tensor():
    few = tf.make_tensor_proto(np.zeros(3, np.float32))
    few.tensor_content = few.tensor_content[:-1]
    wrong = [few, repeated([1.0], -1, 1), repeated(["a", "b"], -1, -2), repeated(["a", "b"], 1)]
    small = to_proto(np.array([1], np.int32), tf.int32)
    small.dtype, small.int_val[0] = tf.int8.as_datatype_enum, 300
    for proto in (*wrong, small):
        with pytest.raises(StatusError, match="tensor parsing error: x"):
            to_array("x", proto)
