"""The weights of two towers in one HDF5 file, under names that do not depend on Keras.

`token_embedder/shared/token_table`, `encoder/document/transformer_layer_0/qkv_kernel`: the part,
the tower that has it (or `shared`), and the weight's own path. A file stays readable when a layer's
class is renamed or Keras changes its own layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras

from tfde.errors import CorruptError
from tfde.towers.sharing import PARTS, Towers


def write_weights(path: Path, towers: Towers) -> None:
    """Writes every weight once."""
    with h5py.File(path, "w") as file:
        for name, weight in _named(towers):
            file.create_dataset(name, data=keras.ops.convert_to_numpy(weight))


def read_weights(path: Path, towers: Towers) -> None:
    """Puts the weights of a file into towers of the same description.

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
            weights = dict(_named(towers))
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


def _named(towers: Towers) -> Iterator[tuple[str, Any]]:
    for part in PARTS:
        query, document = getattr(towers.query_parts, part), getattr(towers.document_parts, part)
        if query is None:
            continue
        sides = {"shared": query} if query is document else {"query": query, "document": document}
        for side, layer in sides.items():
            for weight in layer.weights:
                _, _, name = weight.path.partition("/")  # without the layer's own name
                yield f"{part}/{side}/{name}", weight
