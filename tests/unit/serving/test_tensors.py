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


def assert_read_as_kernels_read(proto):
    dtype = tf.dtypes.as_dtype(proto.dtype)
    expected = tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy()
    found = to_array("x", proto)
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("texts", [[b"\xff\0"], [b"a", b"", b"b" * 300], [[b"x"] * 2] * 2, b"one"])
def test_strings_as_content(texts):
    """As C++ clients write them who ask for the shortest form."""
    proto = tf.make_tensor_proto(np.array(texts, object), tf.string)
    values = list(proto.string_val)
    del proto.string_val[:]
    lengths = b"".join(
        bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
        for text in values
    )
    proto.tensor_content = lengths + b"".join(values)
    assert_read_as_kernels_read(proto)


def test_more_values_than_there_is_room_for():
    assert_read_as_kernels_read(repeated(["a", "b"], 1))
    for dtype in (tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.uint64, tf.bool):
        proto = to_proto(np.arange(3).astype(dtype.as_numpy_dtype), dtype)
        proto.tensor_shape.dim[0].size = 2
        assert_read_as_kernels_read(proto)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16])
def test_small_numbers_wrap_around(dtype):
    proto = to_proto(np.array([1, 2, 3], np.int32), tf.int32)
    proto.dtype = dtype.as_datatype_enum
    proto.int_val[:] = [300, -1, 70_000]
    assert_read_as_kernels_read(proto)


def test_what_is_no_tensor():
    few = tf.make_tensor_proto(np.zeros(3, np.float32))
    few.tensor_content = few.tensor_content[:-1]
    ranked = repeated([1.0], 4_000_000_000)
    ranked.tensor_shape.unknown_rank = True
    wrong = [few, repeated([1.0], -1, 1), repeated(["a", "b"], -1, -2), ranked]
    # Whose sizes' product is what each would be made of.
    wrong += [repeated(["a"], -40_000, -40_000), repeated([1.0], -60_000, -60_000)]
    for content in (b"", b"\x01", b"\x02a", b"\x01ab", b"\xff" * 20, b"\x80"):
        strings = repeated(["a"], 1)
        del strings.string_val[:]
        strings.tensor_content = content or b"\x80\x80"
        wrong.append(strings)
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.io.parse_tensor(strings.SerializeToString(), tf.string)
    for proto in wrong:
        with pytest.raises(StatusError, match="tensor parsing error: x"):
            to_array("x", proto)
