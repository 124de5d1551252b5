"""The weights of a model in one HDF5 file, under names that do not depend on Keras.

`token_embedder/shared/token_table`, `encoder/document/transformer_layer_0/qkv_kernel`: the part, in
a dual encoder the tower that has it (or `shared`), and the weight's own path. A file stays readable
when a layer's class is renamed or Keras changes its own layout.

Every weight is stored in its own dtype. HDF5 has no bfloat16: the bits of such a weight are stored
as uint16, with the attribute `dtype` = "bfloat16". A weight is read into a model of any dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfde.errors import CorruptError

Weights = Mapping[str, keras.Variable]


def named_weights(part: str, layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable]]:
    """Yields each weight of a layer with its name, `part` in the place of the layer's own."""
    for weight in layer.weights:
        _, _, name = weight.path.partition("/")
        yield f"{part}/{name}", weight


def write_weights(path: Path, weights: Weights) -> None:
    """Writes every weight once."""
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
    with _open(path) as file:
        dtypes = {_dtype(file[name]) for name in _names(file)}
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), None)


def read_weights(path: Path, weights: Weights) -> None:
    """Puts the weights of a file into those of a model of the same description.

    Raises:
        CorruptError: the file is damaged, or lacks a weight, or has one too many or of another
            shape.
    """
    with _open(path) as file:
        for name in sorted(_names(file) ^ set(weights)):
            state = "missing" if name in weights else "one too many"
            raise CorruptError(f"{path}: weight {name!r} is {state}.")
        for name, weight in weights.items():
            dataset = file[name]
            if dataset.shape != tuple(weight.shape):
                raise CorruptError(
                    f"{path}: weight {name!r} must have shape {tuple(weight.shape)}."
                    f" Received: {dataset.shape}"
                )
            array = dataset[()]
            if _dtype(dataset) == "bfloat16":
                array = array.view(ml_dtypes.bfloat16)
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
def _open(path: Path) -> Iterator[h5py.File]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError) as error:  # h5py's, by where the damage is
        raise CorruptError(f"{path}: {str(error).splitlines()[0]}") from error


def _names(file: h5py.File) -> set[str]:
    names: set[str] = set()
    file.visititems(lambda name, item: names.add(name) if isinstance(item, h5py.Dataset) else None)
    return names


def _dtype(dataset: h5py.Dataset) -> str:
    return str(dataset.attrs.get("dtype", dataset.dtype.name))
