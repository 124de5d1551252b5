"""The weights of a model in one HDF5 file, under names that do not depend on Keras.

`token_embedder/shared/token_table`, `encoder/document/transformer_layer_0/qkv_kernel`: the part, in
a dual encoder the tower that has it (or `shared`), and the weight's own path. A file stays readable
when a layer's class is renamed or Keras changes its own layout.

Every weight is stored in its own dtype. HDF5 has no bfloat16: the bits of such a weight are stored
as uint16, with the attribute `dtype` = "bfloat16". A weight is read into a model of any dtype.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfde.checkpoints.hdf5_file import check_finite, open_hdf5, stored_arrays
from tfde.errors import CorruptError, DataError
from tfde.storage.files import reserve

Weights = Mapping[str, keras.Variable]
_OVERHEAD_BYTES = 2048  # of an array in a file, at most: its name, shape and place
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def named_weights(part: str, layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable]]:
    """Yields each weight of a layer with its name, `part` in the place of the layer's own.

    Raises:
        ValueError: two weights have one name.
    """
    seen = set()
    for weight in layer.weights:
        _, _, name = weight.path.partition("/")
        if name in seen:  # one of them would be lost in the file
            raise ValueError(f"{layer.name}: two weights must not have one name. Received: {name}")
        seen.add(name)
        yield f"{part}/{name}", weight


def write_weights(path: Path, weights: Weights) -> None:
    """Writes every weight once.

    Raises:
        OSError: there is no room for them.
    """
    # HDF5 ends the process with a fault where the disk is full while it writes.
    bytes_of = (math.prod(w.shape) * np.dtype(w.dtype).itemsize for w in weights.values())
    reserve(path, sum(bytes_of) + _OVERHEAD_BYTES * len(weights))
    with h5py.File(path, "w") as file:
        for name, weight in weights.items():
            array = keras.ops.convert_to_numpy(weight)
            if array.dtype == ml_dtypes.bfloat16:
                file.create_dataset(name, data=array.view(np.uint16)).attrs["dtype"] = "bfloat16"
            else:
                file.create_dataset(name, data=array)


def stored_dtype(path: Path) -> str | None:
    """Returns `"bfloat16"` or `"float16"` if a weight is stored in it, else `None`.

    Raises:
        CorruptError: the file is damaged.
    """
    with _open(path) as arrays:
        dtypes = set(map(_dtype, arrays.values()))
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), None)


def read_weights(path: Path, weights: Weights, *, others: bool = False) -> None:
    """Puts the weights of a file into those of a model of the same description.

    Args:
        path: The file.
        weights: What is filled, by name.
        others: Whether the file may hold weights beside these.

    Raises:
        CorruptError: the file is damaged or lies partly in other files; it lacks a weight, or has
            one too many, of another shape, of no floating dtype, or not finite.
    """
    with _open(path) as arrays:
        for name in sorted(set(weights) - set(arrays) if others else set(arrays) ^ set(weights)):
            state = "missing" if name in weights else "one too many"
            raise CorruptError(f"{path}: weight {name!r} is {state}.")
        for name, weight in weights.items():
            dataset = arrays[name]
            for what, wanted, received in (
                ("shape", (tuple(weight.shape),), dataset.shape),
                ("dtype", _DTYPES, _dtype(dataset)),
            ):
                if received not in wanted:
                    rule = f"must have {what} {' or '.join(map(str, wanted))}"
                    raise CorruptError(f"{path}: weight {name!r} {rule}. Received: {received}")
            array = dataset[()]
            if _dtype(dataset) == "bfloat16":
                array = array.view(ml_dtypes.bfloat16)
            check_finite(path, name, array)
            weight.assign(array.astype(tf.as_dtype(weight.dtype).as_numpy_dtype, copy=False))


def fingerprint(description: bytes, weights: Iterable[keras.Variable]) -> str:
    """Returns 16 hex digits that change with the description or any weight.

    A weight counts in its own dtype: a model in bfloat16 is another than its source in float32,
    for its embeddings differ.
    """
    digest = hashlib.sha256(description)
    for weight in weights:
        array = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        if array.dtype.itemsize == 2:
            digest.update(array.dtype.name.encode())
            array = array.view("<u2")
        else:
            array = array.astype("<f4", copy=False)
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]


@contextmanager
def _open(path: Path) -> Iterator[dict[str, h5py.Dataset]]:
    """Gives the arrays of a file by name.

    Raises:
        CorruptError: the file is damaged, also while it is read; or it is not all there is.
    """
    try:
        with open_hdf5(path) as file:
            yield stored_arrays(path, file)
    except DataError as error:
        raise CorruptError(str(error)) from error


def _dtype(dataset: h5py.Dataset) -> str:
    said = dataset.attrs.get("dtype")
    return "bfloat16" if said == "bfloat16" and dataset.dtype == np.uint16 else str(dataset.dtype)
