"""HDF5 files of weights, from anywhere: a file must hold itself what it seems to hold.

HDF5 lets a file name others, whose bytes a reader then finds in its arrays: external storage,
virtual data sets, links. Keras writes none of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import h5py
import ml_dtypes
import numpy as np

from tfde.checkpoints.checkpoint_files import CheckpointFiles, is_beside
from tfde.errors import ConfigError, DataError, first_line, shorten
from tfde.storage.json_file import refuse_pointer

_MOST_GROUPS_DEEP = 64
_WEIGHTS = "model.weights.h5"
_SHARDS = "model.weights.json"
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_MOST = float(np.finfo(np.float32).max)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Opens a file for reading.

    Raises:
        DataError: the file is a Git LFS pointer, no HDF5 or damaged; also while it is read.
    """
    refuse_pointer(path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except DataError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
        # h5py's, by where the damage is.
        reason = first_line(error)
        raise DataError(path, None, "must be a whole HDF5 file.", reason) from error


def stored_arrays(path: Path, file: h5py.File) -> dict[str, h5py.Dataset]:
    """Returns all arrays of a file by their names.

    Raises:
        DataError: one of them, or a group, is not stored in the file itself.
    """
    found: dict[str, h5py.Dataset] = {}
    seen: set[int] = set()
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen or prefix.count("/") > _MOST_GROUPS_DEEP:
            rule = f"the group {prefix[:40]} must stand in one place, {_MOST_GROUPS_DEEP} deep at"
            raise DataError(path, None, f"{rule} most.")
        seen.add(address)
        for key in group:
            name = prefix + key
            _check_link(path, name, group, key)
            item = group[key]
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset):
                _check_storage(path, name, item)
                found[name] = item
    return found


def _check_link(path: Path, name: str, group: h5py.Group, key: str) -> None:
    try:
        link = group.get(key, getlink=True)
    except TypeError:  # a link of a kind that somebody's plugin defines
        link = None
    if not isinstance(link, h5py.HardLink):
        rule = f"{name} must lie in this file, and is a link to another place."
        raise DataError(path, None, rule, _target(link))


def _target(link: object) -> str:
    parts = (getattr(link, "filename", ""), getattr(link, "path", ""))
    return ":".join(filter(None, parts)) or type(link).__name__


def _check_storage(path: Path, name: str, array: h5py.Dataset) -> None:
    if array.is_virtual:
        rule = f"the array {name} must lie in this file, and is a virtual data set."
        raise DataError(path, None, rule, ", ".join(s.file_name for s in array.virtual_sources()))
    if array.external:
        rule = f"the array {name} must lie in this file, and has external storage."
        raise DataError(path, None, rule, array.external[0][0])


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Hdf5Arrays:
    """Arrays by name, from `model.weights.h5` or from the shards in `model.weights.json`.

    A name is the path in the file, such as `layers/dense/vars/0`; `layers/dense/vars` is its
    group. Of shards, only those are opened (and fetched, if the checkpoint is a hub's) that hold
    something asked for.

    Args:
        files: The checkpoint.

    Raises:
        ConfigError: there are no weight files.
        DataError: the weight file is not HDF5 or is cut off, or lies partly in other files.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._headers: dict[str, dict[str, _Header]] = {}  # by file
        self._shards: dict[str, list[str]] = {}  # files by group
        if files.find(_WEIGHTS) is None and files.find(_SHARDS) is not None:
            for group, names in files.json_object(_SHARDS, "weight_map").items():
                shards = [names] if isinstance(names, str) else names
                if not isinstance(shards, list) or not all(
                    is_beside(shard, ".h5") for shard in shards
                ):
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


def check_finite(path: Path, name: str, array: np.ndarray) -> None:
    """Refuses an array with a value that float32 cannot hold.

    Args:
        path: The file, for the message.
        name: The array.
        array: Of any floating dtype and shape.

    Raises:
        DataError: a value is NaN, infinite, or beyond float32.
    """
    if not array.size:
        return
    # No mask of the array's size: a checkpoint may fill the memory.
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN
        least, most = float(array.min()), float(array.max())
    for value in (least, most):
        if not abs(value) <= _MOST:  # NaN too, which is neither above nor below
            raise DataError(path, None, f"the array {name} must hold finite float32.", value)
