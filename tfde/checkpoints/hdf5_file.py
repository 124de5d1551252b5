"""HDF5 files of weights, from anywhere: a file must hold itself what it seems to hold.

HDF5 lets a file name others, whose bytes a reader then finds in its arrays: external storage,
virtual data sets, links. Keras writes none of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from tfde.errors import DataError
from tfde.json_file import refuse_pointer

_MOST_GROUPS_DEEP = 64


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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
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
