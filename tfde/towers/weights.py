"""The weights of a model in one HDF5 file, under names that do not depend on Keras.

`token_embedder/shared/token_table`, `encoder/document/transformer_layer_0/qkv_kernel`: the part, in
a dual encoder the tower that has it (or `shared`), and the weight's own path. A file stays readable
when a layer's class is renamed or Keras changes its own layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import h5py
import keras
import numpy as np

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
            file.create_dataset(name, data=keras.ops.convert_to_numpy(weight))


def read_weights(path: Path, weights: Weights) -> None:
    """Puts the weights of a file into those of a model of the same description.

    Raises:
        CorruptError: the file is damaged, or lacks a weight, or has one too many or of another
            shape.
    """
    try:
        with h5py.File(path, "r") as file:
            stored: set[str] = set()
            file.visititems(
                lambda name, item: stored.add(name) if isinstance(item, h5py.Dataset) else None
            )
            for name in sorted(stored ^ set(weights)):
                state = "missing" if name in weights else "one too many"
                raise CorruptError(f"{path}: weight {name!r} is {state}.")
            for name, weight in weights.items():
                if file[name].shape != tuple(weight.shape):
                    raise CorruptError(
                        f"{path}: weight {name!r} must have shape {tuple(weight.shape)}."
                        f" Received: {file[name].shape}"
                    )
                weight.assign(file[name][()])
    except OSError as error:
        raise CorruptError(f"{path}: {str(error).splitlines()[0]}") from error


def fingerprint(description: bytes, weights: Iterable[keras.Variable]) -> str:
    """Returns 16 hex digits that change with the description or any weight."""
    digest = hashlib.sha256(description)
    for weight in weights:
        array = np.ascontiguousarray(keras.ops.convert_to_numpy(weight), dtype="<f4")
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]
