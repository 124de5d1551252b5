"""The base indexes of a live index: each is built aside, and replaces the one before.

The first is the index directory itself, as `tfde build-index` wrote it; later ones lie in
`generations/NNNN/`. Which one counts stands in the log of changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tfde.errors import CorruptError
from tfde.retrieval.index import open_index
from tfde.retrieval.index_directory import MANIFEST, index_bytes, read_index, remove_index
from tfde.retrieval.live.change_log import FILE, ChangeLog, read_acknowledged, way_out
from tfde.retrieval.live.change_rows import Change, LogState
from tfde.retrieval.live.snapshot import Base, Snapshot
from tfde.storage.files import sha256

FIRST = 1
_FOLDER = "generations"


class LiveFiles(NamedTuple):
    """What an index directory holds: the base, the changes, and the number of the last one."""

    base: Base
    changes: list[Change]
    sequence: int


# Which files are the log of changes and the manifest of the first base: inode, date or 0 each.
Place = tuple[int, int, int]
NOTHING: Place = (0, 0, 0)


def place_of(path: Path) -> Place:
    """Returns what tells an index directory from another one that takes its place."""
    log, manifest = (_stat(path / name) for name in (FILE, MANIFEST))
    return (
        log.st_ino if log else 0,
        manifest.st_ino if manifest else 0,
        manifest.st_mtime_ns if manifest else 0,
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def generation_directory(path: Path, generation: int) -> Path:
    """Returns where a base lies."""
    return path if generation == FIRST else path / _FOLDER / f"{generation:04d}"


def newest_generation(path: Path) -> int:
    """Returns the number of the newest base that is there with all its files.

    Raises:
        CorruptError: there is none.
    """
    names = [folder.name for folder in (path / _FOLDER).glob("*") if folder.name.isdecimal()]
    for generation in (*sorted(map(int, names), reverse=True), FIRST):
        if has_base(path, generation):
            return generation
    raise CorruptError(f"{path}: holds no index.")


def has_base(path: Path, generation: int) -> bool:
    """Returns whether a base is there with all its files, by their sizes."""
    try:
        read_index(generation_directory(path, generation), verify=False)
    except (CorruptError, FileNotFoundError):
        return False
    return True


def read_files(path: Path, *, verify: bool) -> LiveFiles:
    """Returns an index and its changes, of one moment, also while another process changes them.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: a file is missing or differs.
    """
    while True:
        state, changes = read_log(path, verify=verify)
        directory = generation_directory(path, state.generation)
        try:
            if not (directory / MANIFEST).is_file():
                raise CorruptError(
                    f"{directory}: is gone, the index that {path / FILE} changes: restore a backup."
                )
            if sha256(directory / MANIFEST) != state.manifest:
                raise CorruptError(f"{directory}: is not the index that {path / FILE} changes.")
            index = open_index(directory, verify=verify)
            num_bytes = index_bytes(directory)
            base = Base(index, state.generation, state.manifest, num_bytes)
            return LiveFiles(base, changes, state.sequence)
        except Exception:
            # Another process may have put the next generation in its place meanwhile.
            if read_log(path, verify=False)[0][:2] == state[:2]:
                raise


def read_log(path: Path, *, verify: bool) -> tuple[LogState, list[Change]]:
    """Returns the state and the changes of an index directory; none where none were ever made.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: the log is damaged.
    """
    if not (path / FILE).is_file():
        first = (path / MANIFEST).is_file()
        state = LogState(FIRST, sha256(path / MANIFEST), 0) if first else None
        if lost := lost_changes(path):
            if not (path / FILE).is_file():  # else another process has made it meanwhile
                raise CorruptError(
                    f"{path / FILE}: is gone, and {lost} with it: restore a backup;"
                    f" {way_out(path / FILE)}"
                )
        elif state is None:
            raise FileNotFoundError(f"{path}: no {MANIFEST} there.")
        else:
            return state, []
    log = ChangeLog(path / FILE, write=False)
    try:
        if verify:
            log.check()
        return log.read()
    finally:
        log.close()


def lost_changes(path: Path) -> str:
    """Returns what an index lost together with its file of changes, which is gone; "": nothing."""
    if (path / _FOLDER).is_dir() and not (path / MANIFEST).is_file():
        return "the changes since the last compaction"
    acknowledged = read_acknowledged(path / FILE)
    return f"{acknowledged:,} changes" if acknowledged else ""


def check_base(path: Path, generation: int) -> None:
    """Reads a base whole.

    Raises:
        CorruptError: a file of it is missing or differs.
    """
    read_index(generation_directory(path, generation), verify=True)


def index_version(path: str | Path) -> str:
    """Returns a sha256 in hex that changes with every change of the index in a directory.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: the log of changes is damaged.
    """
    state, changes = read_log(Path(path), verify=False)
    if not changes:
        return state.manifest
    return hashlib.sha256(f"{state.manifest} {state.sequence}".encode()).hexdigest()


def write_base(path: Path, snapshot: Snapshot) -> Base:
    """Builds the next base of all documents of a snapshot; it counts once the log says so."""
    generation = snapshot.below.generation + 1
    directory = generation_directory(path, generation)
    built = snapshot.base.index.rebuilt(
        [snapshot.base.rows(), snapshot.delta.rows()], snapshot.doc_ids()
    )
    built.save(directory, overwrite=True)
    new = built.saved_at(directory)
    return Base(new, generation, sha256(directory / MANIFEST), index_bytes(directory))


def remove_others(path: Path, generation: int) -> None:
    """Removes all bases but one, and what a killed process left unfinished."""
    for unfinished in path.glob(f".{FILE}.*"):
        unfinished.unlink()
    kept = generation_directory(path, generation)
    for directory in (path / _FOLDER).glob("*"):
        if directory != kept:
            (directory / MANIFEST).unlink(missing_ok=True)  # first: what is left is no index
            # ScaNN writes into a directory that a late reader opens; the next time removes it.
            shutil.rmtree(directory, ignore_errors=True)
    if generation != FIRST and (path / MANIFEST).is_file():
        try:
            remove_index(path)
        except CorruptError:  # nobody reads it again: without its manifest it is no index
            (path / MANIFEST).unlink()
