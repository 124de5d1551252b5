"""The way out of a damaged file of changes: what can be read is kept, the rest is counted."""

from __future__ import annotations

import filecmp
import itertools
import json
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.index_directory import CHANGING, MANIFEST
from tfde.retrieval.live.base_indexes import (
    check_base,
    generation_directory,
    has_base,
    lost_changes,
    newest_generation,
)
from tfde.retrieval.live.change_log import (
    ACKNOWLEDGED,
    FILE,
    ChangeLog,
    read_acknowledged,
    write_acknowledged,
)
from tfde.retrieval.live.change_rows import (
    Change,
    LogState,
    change_of,
    checksum_of,
    connect,
    metadata_tables,
)
from tfde.retrieval.live.write_ahead_log import log_file, read_frames
from tfde.storage.atomic import atomic_directory, atomic_file, directory_lock
from tfde.storage.files import sha256
from tfde.types import Document

ASIDE = "damaged"
# In SQLite's header: what every file begins with, and that it has no write-ahead log.
_HEADER = {0: b"SQLite format 3\0", 18: b"\x01\x01"}


@dataclass(frozen=True)
class Recovery:
    """What a recovery kept.

    Args:
        changes: Documents whose last change was kept.
        last: The number of the last change that was kept.
        acknowledged: The number of the last one that was acknowledged; `None` if unknown.
        unreadable: Rows that could not be read.
        lost_pages: Pages of whose last content only an older one is left.
        is_whole: Whether nothing is lost; `None`: nothing that is known of, where the last
            acknowledged change is unknown.
        aside: Where the damaged files lie now.
    """

    changes: int
    last: int
    acknowledged: int | None
    unreadable: int
    lost_pages: int
    is_whole: bool | None
    aside: Path


class Salvage(NamedTuple):
    """What could still be read of a damaged file.

    Args:
        state: The state, `None` where it cannot be read.
        changes: The last one of each document, oldest first.
        documents: Titles and texts, by id.
        unreadable: How many rows differ from what was written.
        is_whole: Whether SQLite finds nothing wrong.
    """

    state: LogState | None
    changes: list[Change]
    documents: dict[str, Document]
    unreadable: int
    is_whole: bool


def recover(path: Path) -> Recovery:
    """Writes the file of changes of an index anew, from all that is still whole.

    The damaged files stay, in `damaged/` beside it. Where the file itself is gone, the newest base
    is left. A recovery that was killed is taken up.

    Raises:
        ConfigError: no changes there, `damaged/` is in the way, or another process writes.
        CorruptError: no base index is there, or the base is damaged; nothing is changed.
    """
    log, aside = path / FILE, path / ASIDE
    try:
        changed = log.is_file() or lost_changes(path)
    except CorruptError:
        changed = True
    if not changed:
        raise ConfigError(f"{path}: must hold {FILE}; nothing was ever changed there.")
    if aside.exists() and not _is_unfinished(log, aside):
        raise ConfigError(f"{aside}: must be moved away; it holds what an earlier recovery kept.")
    with directory_lock(path, CHANGING):
        if aside.exists():
            _put_back(log, aside)
        else:
            _keep_aside(log, aside)
        try:
            acknowledged = read_acknowledged(log)
        except CorruptError:
            acknowledged = None
        found, lost_pages = _read_whole(log, aside / f"joined.{FILE}", acknowledged)
        state = _state(path, found, acknowledged or 0)
        try:
            check_base(path, state.generation)
        except CorruptError:
            shutil.rmtree(aside)
            raise
        # Without SQLite's own log first: with it, the new file would be changed by old pages.
        for suffix in ("-wal", "-shm"):
            log.with_name(FILE + suffix).unlink(missing_ok=True)
        ChangeLog.create(log, state, found.changes, found.documents.values())
        write_acknowledged(log, state.sequence)
    last = max([found.state.sequence if found.state else 0, *(c.sequence for c in found.changes)])
    same_base = found.state is not None and found.state.generation == state.generation
    is_whole: bool | None = _has_all(found, acknowledged) and not lost_pages and same_base
    if is_whole and acknowledged is None and last > 0:
        is_whole = None
    return Recovery(
        len(found.changes), last, acknowledged, found.unreadable, lost_pages, is_whole, aside
    )


def _read_whole(log: Path, joined: Path, acknowledged: int | None) -> tuple[Salvage, int]:
    """Returns what can be read, and how many pages have only an older content."""
    if not log.is_file():
        return Salvage(None, [], {}, 0, False), 0
    # First what SQLite itself would read: it is all, where only a power cut tore the end.
    for past_damage in (False, True):
        lost_pages = _join_pages(log, joined, past_damage=past_damage)
        found = salvage(joined)
        joined.unlink()
        if acknowledged is not None and _has_all(found, acknowledged) and not lost_pages:
            break
    return found, lost_pages


def _keep_aside(log: Path, aside: Path) -> None:
    with atomic_directory(aside) as temporary:
        for file in _files(log):
            if file.is_file():
                shutil.copyfile(file, temporary / file.name)


def _files(log: Path) -> list[Path]:
    return [log, log_file(log), log.with_name(ACKNOWLEDGED)]


def _is_unfinished(log: Path, aside: Path) -> bool:
    """Whether a recovery kept these files and was killed before it put another in their place."""
    kept = aside / log.name
    if not (kept.is_file() and log.is_file()):
        return not kept.exists() and not log.exists()
    return filecmp.cmp(kept, log, shallow=False)


def _put_back(log: Path, aside: Path) -> None:
    for file in _files(log):
        if (aside / file.name).is_file() and not file.exists():
            with atomic_file(file) as temporary:
                shutil.copyfile(aside / file.name, temporary)


def _has_all(found: Salvage, acknowledged: int | None) -> bool:
    """Whether what was read holds every acknowledged change, for all that can be known."""
    return (
        found.is_whole
        and not found.unreadable
        and found.state is not None
        and found.state.sequence >= (acknowledged or 0)
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
        for place, content in _HEADER.items():
            file.seek(place)
            file.write(content)
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


def salvage(path: Path) -> Salvage:
    """Reads what can be read of a file that may be damaged, and leaves out what cannot."""
    database = connect(path, "rw")
    try:
        unreadable, kept = 0, {}
        try:
            more = metadata_tables(database)
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            more, unreadable = (), 1
        for table in ("state", "changes", "documents", *more):
            rows, broken = _readable_rows(database, table)
            good = [row[:-1] for row in rows if _is_whole(row)]
            unreadable += broken + len(rows) - len(good)
            kept[table] = good
        states = [LogState(*row) for row in kept["state"]]
        changes: dict[str, Change] = {}
        for sequence, doc_id, content in sorted(kept["changes"], key=lambda row: row[0]):
            changes.pop(doc_id, None)
            changes[doc_id] = change_of(sequence, doc_id, content)
        documents = {row[0]: Document(*row) for row in kept["documents"]}
        for doc_id, content in kept.get("metadata", ()):
            if doc_id in documents:
                documents[doc_id] = documents[doc_id]._replace(metadata=json.loads(content))
        try:
            found = [row[0] for row in database.execute("PRAGMA integrity_check")]
        except sqlite3.DatabaseError:
            found = []
        state = max(states, key=lambda one: one.sequence, default=None)
        return Salvage(state, list(changes.values()), documents, unreadable, found == ["ok"])
    finally:
        database.close()


def _readable_rows(database: sqlite3.Connection, table: str) -> tuple[list[tuple], int]:
    """Returns the rows of a table up to what cannot be read, from both ends, and 1 if there is."""
    rows: dict[int, tuple] = {}
    for order in ("", " DESC"):
        try:
            for rowid, *row in database.execute(
                f"SELECT rowid, * FROM {table} NOT INDEXED ORDER BY rowid{order}"
            ):
                rows[rowid] = tuple(row)
            return [rows[rowid] for rowid in sorted(rows)], 0
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            continue
    return [rows[rowid] for rowid in sorted(rows)], 1


def _is_whole(row: tuple) -> bool:
    return checksum_of(*row[:-1]) == row[-1]
