"""The arrays of Keras' HDF5 weight files, one file or shards, read one by one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import h5py
import ml_dtypes
import numpy as np

from tfde.checkpoints.finite_arrays import check_finite
from tfde.checkpoints.hdf5_file import open_hdf5, stored_arrays
from tfde.checkpoints.preset_files import PresetFiles
from tfde.errors import ConfigError, DataError, shorten

_WEIGHTS = "model.weights.h5"
_SHARDS = "model.weights.json"
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Hdf5Arrays:
    """Arrays by name, from `model.weights.h5` or from the shards in `model.weights.json`.

    A name is the path in the file, such as `layers/dense/vars/0`; `layers/dense/vars` is its
    group. Of shards, only those are opened (and fetched, if the preset is a hub's) that hold
    something asked for.

    Args:
        files: The preset.

    Raises:
        ConfigError: there are no weight files.
        DataError: the weight file is not HDF5 or is cut off, or lies partly in other files.
    """

    def __init__(self, files: PresetFiles) -> None:
        self._files = files
        self._headers: dict[str, dict[str, _Header]] = {}  # by file
        self._shards: dict[str, list[str]] = {}  # files by group
        if files.find(_WEIGHTS) is None and files.find(_SHARDS) is not None:
            for group, names in files.json_object(_SHARDS, "weight_map").items():
                shards = [names] if isinstance(names, str) else names
                if not isinstance(shards, list) or not all(map(_is_beside, shards)):
                    raise ConfigError(
                        f"{files}/{_SHARDS}: `weight_map` must name files beside it."
                        f" Received: {shorten(names)}"
                    )
                self._shards[group.strip("/")] = shards
        else:
            for name in self._headers_in(_WEIGHTS):
                self._shards[name.rpartition("/")[0]] = [_WEIGHTS]

    def groups(self) -> list[str]:
        """Returns the groups of all arrays."""
        return list(self._shards)

    def check(self, name: str, shape: tuple[int, ...], *, rule: str) -> None:
        """Checks an array by its header, before it is read.

        Args:
            name: The array.
            shape: What it must have.
            rule: Where the shape comes from, for the message.

        Raises:
            DataError: there is no such array, it has another shape, or it does not hold floats.
        """
        header = self._headers_in(self._file_of(name))[name]
        if header.shape != shape:
            where = f"the array {name} must have shape {shape}, {rule}."
            raise DataError(str(self._files), None, where, header.shape)
        if header.dtype not in _DTYPES:  # quantised: nothing without its scale
            where = f"the array {name} must have a dtype of {', '.join(_DTYPES)}."
            raise DataError(str(self._files), None, where, header.dtype)

    def read(self, name: str) -> np.ndarray:
        """Returns an array in the dtype in which it is stored.

        Raises:
            DataError: there is no such array, it cannot be read, or it is not finite.
        """
        path = self._files.path(self._file_of(name))
        with open_hdf5(path) as file:
            dataset = file[name]
            value = np.asarray(dataset[()])
            if _dtype(dataset) == "bfloat16":
                value = value.view(ml_dtypes.bfloat16)
        check_finite(path, name, value)
        return value

    def _file_of(self, name: str) -> str:
        # Keras begins a new shard within a layer's arrays where the old one is full.
        for shard in self._shards.get(name.rpartition("/")[0], []):
            if name in self._headers_in(shard):
                return shard
        raise DataError(str(self._files), None, f"the weights must hold the array {name}.")

    def _headers_in(self, shard: str) -> dict[str, _Header]:
        if shard not in self._headers:
            path = self._files.path(shard)
            with open_hdf5(path) as file:
                self._headers[shard] = {
                    name: _Header(tuple(item.shape), _dtype(item))
                    for name, item in stored_arrays(path, file).items()
                }
        return self._headers[shard]


def _dtype(dataset: h5py.Dataset) -> str:
    # Keras writes bfloat16, which HDF5 does not know, as two bytes of no type.
    if dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2:
        return "bfloat16"
    return str(dataset.dtype)


def _is_beside(name: object) -> bool:
    return isinstance(name, str) and name not in ("", "..") and Path(name).name == name
