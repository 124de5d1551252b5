"""The way out of a damaged file of changes: what can be read is kept, the rest is counted."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.index_directory import CHANGING, MANIFEST
from tfde.retrieval.live.base_indexes import generation_directory, has_base, newest_generation
from tfde.retrieval.live.change_log import (
    ACKNOWLEDGED,
    FILE,
    ChangeLog,
    LogState,
    Salvage,
    read_acknowledged,
    salvage,
)
from tfde.retrieval.live.write_ahead_log import log_file, read_frames
from tfde.storage.atomic import atomic_file, directory_lock
from tfde.storage.files import sha256

ASIDE = "damaged"
_WRITE_VERSIONS = (18, b"\x01\x01")  # in SQLite's header: without a write-ahead log


@dataclass(frozen=True)
class Recovery:
    """What a recovery kept.

    Args:
        changes: Documents whose last change was kept.
        last: The number of the last change that was kept.
        acknowledged: The number of the last one that was acknowledged; `None` if unknown.
        unreadable: Rows that could not be read.
        lost_pages: Pages of whose last content only an older one is left.
        is_whole: Whether nothing is lost.
        aside: Where the damaged files lie now.
    """

    changes: int
    last: int
    acknowledged: int | None
    unreadable: int
    lost_pages: int
    is_whole: bool
    aside: Path


def recover(path: Path) -> Recovery:
    """Writes the file of changes of an index anew, from all that is still whole.

    The damaged files stay, in `damaged/` beside it.

    Raises:
        ConfigError: no changes there, `damaged/` is in the way, or another process writes.
        CorruptError: no base index is there.
    """
    log, aside = path / FILE, path / ASIDE
    if not log.is_file():
        raise ConfigError(f"{path}: must hold {FILE}; nothing was ever changed there.")
    if aside.exists():
        raise ConfigError(f"{aside}: must be moved away; it holds what an earlier recovery kept.")
    with directory_lock(path, CHANGING):
        _keep_aside(log, aside)
        try:
            acknowledged: int | None = read_acknowledged(log)
        except CorruptError:
            acknowledged = None
        joined = aside / f"joined.{FILE}"
        # First what SQLite itself would read: it is all, where only a power cut tore the end.
        for past_damage in (False, True):
            lost_pages = _join_pages(log, joined, past_damage=past_damage)
            found = salvage(joined)
            joined.unlink()
            if _has_all(found, acknowledged) and not lost_pages:
                break
        state = _state(path, found, acknowledged or 0)
        # Without SQLite's own log first: with it, the new file would be changed by old pages.
        for suffix in ("-wal", "-shm"):
            log.with_name(FILE + suffix).unlink(missing_ok=True)
        ChangeLog.create(log, state, found.changes, found.documents.values())
        log.with_name(ACKNOWLEDGED).unlink(missing_ok=True)
    last = max([found.state.sequence if found.state else 0, *(c.sequence for c in found.changes)])
    is_whole = _has_all(found, acknowledged) and not lost_pages
    return Recovery(
        len(found.changes), last, acknowledged, found.unreadable, lost_pages, is_whole, aside
    )


def _keep_aside(log: Path, aside: Path) -> None:
    aside.mkdir()
    for file in (log, log_file(log), log.with_name(ACKNOWLEDGED)):
        if file.is_file():
            with atomic_file(aside / file.name) as temporary:
                shutil.copyfile(file, temporary)


def _has_all(found: Salvage, acknowledged: int | None) -> bool:
    """Whether what was read holds every acknowledged change, for all that can be known."""
    return (
        found.is_whole
        and not found.unreadable
        and found.state is not None
        and acknowledged is not None
        and found.state.sequence >= acknowledged
    )


def _join_pages(log: Path, joined: Path, *, past_damage: bool) -> int:
    """Writes the SQLite file with the whole frames of its log in it.

    Args:
        log: The SQLite file.
        joined: What is written.
        past_damage: Whether frames behind the first broken one count.

    Returns:
        How many pages have only an older content: their last frame is damaged.
    """
    shutil.copyfile(log, joined)
    # What follows the last commit that is whole was never acknowledged, unless it is damaged.
    frames = [frame._replace(content=b"") for frame in read_frames(log_file(log))]
    if not past_damage:
        frames = list(itertools.takewhile(lambda frame: frame.is_whole, frames))
    ends = [i for i, frame in enumerate(frames) if frame.is_whole and frame.ends_commit]
    used = frames[: ends[-1] + 1] if ends else []
    stale: set[int] = set()
    with joined.open("r+b") as file:
        for frame, _ in zip(read_frames(log_file(log)), used, strict=False):
            if frame.is_whole:
                file.seek((frame.page - 1) * len(frame.content))
                file.write(frame.content)
                stale.discard(frame.page)
            else:
                stale.add(frame.page)
        place, versions = _WRITE_VERSIONS
        file.seek(place)
        file.write(versions)
        file.flush()
        os.fsync(file.fileno())
    return len(stale)


def _state(path: Path, found: Salvage, acknowledged: int) -> LogState:
    """Returns the state, or what the directory says where it is lost or its base is gone."""
    last = max([acknowledged, *(change.sequence for change in found.changes)])
    if found.state is not None:
        last = max(last, found.state.sequence)
        manifest = generation_directory(path, found.state.generation) / MANIFEST
        is_here = has_base(path, found.state.generation)
        if is_here and sha256(manifest) == found.state.manifest:
            return found.state._replace(sequence=last)
    generation = newest_generation(path)
    return LogState(generation, sha256(generation_directory(path, generation) / MANIFEST), last)
