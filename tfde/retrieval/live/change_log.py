"""The changes to an index on the disk: what was committed here is acknowledged, and survives."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.metadata import metadata_json
from tfde.errors import CorruptError
from tfde.retrieval.live.write_ahead_log import check_write_ahead_log
from tfde.storage.atomic import atomic_file
from tfde.types import Document

FILE = "changes.sqlite"
ACKNOWLEDGED = "changes.acknowledged"
FORMAT = 1
_CHECKPOINT_PAGES = 128  # half a megabyte waits in SQLite's own log, not four
_IDS_A_QUERY = 500  # older SQLites take 999 places

_TABLES = (
    "CREATE TABLE state (generation INTEGER NOT NULL, manifest TEXT NOT NULL,"
    " sequence INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE changes (sequence INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE,"
    " vector BLOB, checksum INTEGER NOT NULL)",
    "CREATE TABLE documents (doc_id TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL,"
    " checksum INTEGER NOT NULL)",
)
# Made with the first document that has any.
_METADATA = (
    "CREATE TABLE metadata (doc_id TEXT PRIMARY KEY, content TEXT NOT NULL,"
    " checksum INTEGER NOT NULL)"
)
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_MISMATCH")


class LogState(NamedTuple):
    """Which base index is changed, and the number of the last change."""

    generation: int
    manifest: str  # sha256 of the base's manifest
    sequence: int


class Change(NamedTuple):
    """The last change of a document: its new vector `(D,)` float32, or `None` if it is deleted."""

    sequence: int
    doc_id: str
    vector: np.ndarray | None


class ChangeLog:
    """The last change of each document since the base index was built, in an SQLite file.

    A batch is one transaction: it is there as a whole or not at all, and once a method returned,
    on the disk. Titles and texts stay when the changes themselves have gone into a new base.

    The number of the last acknowledged change stands in a second file too. It is written after
    the change is on the disk, so a lower number in SQLite's files means that some of it is lost.

    Args:
        path: The file, made by `create`.
        write: Whether changes will be written; by one thread at a time.

    Raises:
        CorruptError: the file is damaged or of another format, or lacks acknowledged changes.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        acknowledged = read_acknowledged(path)  # before the state: another process may go on
        check_write_ahead_log(path, _way_out(path))
        self._acknowledged: int | None = None
        with _errors_of(path):
            self._database = _connect(path, "rw" if write else "ro")
            try:
                self._check_format()
                if write:
                    self._database.execute("PRAGMA synchronous = FULL")
                    self._database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
                    self._database.execute("PRAGMA journal_size_limit = 0")
                self._state = self._read_state()
                if self._state.sequence < acknowledged:
                    raise CorruptError(
                        f"{path}: is damaged; its last change is {self._state.sequence}, and"
                        f" {acknowledged} was acknowledged; {_way_out(path)}"
                    )
                if write:
                    flags = os.O_RDWR | os.O_CREAT
                    self._acknowledged = os.open(path.with_name(ACKNOWLEDGED), flags, 0o666)
                    self._acknowledge(self._state.sequence)
            except BaseException:
                self._database.close()
                raise

    @classmethod
    def create(
        cls,
        path: Path,
        state: LogState,
        changes: Iterable[Change] = (),
        documents: Iterable[Document] = (),
    ) -> None:
        """Writes a file, which appears whole or not at all.

        Args:
            path: The new file.
            state: Its state.
            changes: At most one a document.
            documents: Titles and texts that came with changes.
        """
        with atomic_file(path) as temporary, _errors_of(path):
            database = _connect(temporary, "rwc")
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(f"PRAGMA user_version = {FORMAT}")
                for table in _TABLES:
                    database.execute(table)
                database.execute("BEGIN")
                for sequence, doc_id, vector in changes:
                    _put(database, sequence, [doc_id], [_bytes(vector)])
                _put_documents(database, documents)
                _write_state(database, state)
                database.execute("COMMIT")
            finally:
                database.close()

    def check(self) -> None:
        """Reads the whole file.

        Raises:
            CorruptError: its structure is damaged.
        """
        with _errors_of(self.path):
            (found,) = self._database.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise CorruptError(f"{self.path}: is damaged ({' '.join(found.split())}).")

    def read(self, *, after: int = 0) -> tuple[LogState, list[Change]]:
        """Returns the state and the changes, oldest first, all of one moment.

        Args:
            after: Only changes with higher numbers.

        Raises:
            CorruptError: a change differs from what was written.
        """
        with _errors_of(self.path), self._transaction("DEFERRED"):
            state = self._read_state()
            query = "SELECT * FROM changes WHERE sequence > ? ORDER BY sequence"
            rows = self._database.execute(query, (after,))
            return state, [self._change(*row) for row in rows]

    def has_changes(self) -> bool:
        """Returns whether there are changes since the base was built."""
        with _errors_of(self.path):
            (found,) = self._database.execute("SELECT EXISTS (SELECT 1 FROM changes)").fetchone()
        return bool(found)

    @property
    def state(self) -> LogState:
        """The state after the last commit of this object."""
        return self._state

    def add(self, documents: Sequence[Document], vectors: np.ndarray) -> None:
        """Commits new or replaced documents.

        Args:
            documents: With ids that differ.
            vectors: `(len(documents), D)` float32.

        Raises:
            OSError: it cannot be written; then nothing is changed.
        """
        contents = [_bytes(vector) for vector in vectors]
        doc_ids = [document.doc_id for document in documents]
        with self._commit(self._after(len(doc_ids))):
            _put(self._database, self._state.sequence + 1, doc_ids, contents)
            _put_documents(self._database, documents)

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Commits the deletion of documents with these ids, which differ.

        Raises:
            OSError: it cannot be written; then nothing is changed.
        """
        with self._commit(self._after(len(doc_ids))):
            _put(self._database, self._state.sequence + 1, doc_ids, [None] * len(doc_ids))
            _delete_documents(self._database, doc_ids)

    def switch(self, generation: int, manifest: str, through: int) -> None:
        """Commits that a new base holds all changes up to the number `through`.

        Raises:
            OSError: it cannot be written; then nothing is changed.
        """
        with self._commit(self._state._replace(generation=generation, manifest=manifest)):
            self._database.execute("DELETE FROM changes WHERE sequence <= ?", (through,))

    def documents(self, doc_ids: Iterable[str]) -> tuple[int, dict[str, Document]]:
        """Returns the number of the last change, and by id what titles and texts came with changes.

        Both are of one moment.

        Raises:
            CorruptError: one differs from what was written.
        """
        wanted, found = list(doc_ids), {}
        with _errors_of(self.path), self._transaction("DEFERRED"):
            sequence = self._read_state().sequence
            for start in range(0, len(wanted), _IDS_A_QUERY):
                part = wanted[start : start + _IDS_A_QUERY]
                places = ", ".join("?" * len(part))
                query = f"SELECT * FROM documents WHERE doc_id IN ({places})"
                for *fields, checksum in self._database.execute(query, part):
                    if _checksum(*fields) != checksum:
                        raise CorruptError(f"{self.path}: document {fields[0]!r} is damaged.")
                    found[fields[0]] = Document(*fields)
                for table in _metadata_table(self._database):
                    query = f"SELECT * FROM {table} WHERE doc_id IN ({places})"
                    for doc_id, content, checksum in self._database.execute(query, part):
                        if _checksum(doc_id, content) != checksum or doc_id not in found:
                            raise CorruptError(f"{self.path}: metadata of {doc_id!r} is damaged.")
                        found[doc_id] = found[doc_id]._replace(metadata=json.loads(content))
        return sequence, found

    def copy_to(self, path: Path) -> None:
        """Writes the file as it is at one moment, whatever another process changes meanwhile."""
        with _errors_of(path):
            copy = _connect(path, "rwc")
            try:
                self._database.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """Closes the file; whoever closes it last leaves one file, without SQLite's own log."""
        with _errors_of(self.path):
            self._database.close()
        if self._acknowledged is not None:
            os.close(self._acknowledged)
            self._acknowledged = None

    def _after(self, changes: int) -> LogState:
        return self._state._replace(sequence=self._state.sequence + changes)

    def _change(self, sequence: int, doc_id: str, content: bytes | None, checksum: int) -> Change:
        if _checksum(sequence, doc_id, content) != checksum:
            rule = f"change {sequence} is damaged; {_way_out(self.path)}"
            raise CorruptError(f"{self.path}: {rule}")
        return _change_of(sequence, doc_id, content)

    def _check_format(self) -> None:
        (found,) = self._database.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            raise CorruptError(f"{self.path}: has format {found}; expected {FORMAT}.")
        # SQLite believes its schema, whatever became of it.
        tables = self._database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        if [table for (table,) in tables if table != _METADATA] != list(_TABLES):
            raise CorruptError(f"{self.path}: is damaged (its tables are not what was made).")

    def _read_state(self) -> LogState:
        rows = self._database.execute("SELECT * FROM state").fetchall()
        if len(rows) != 1 or _checksum(*rows[0][:-1]) != rows[0][-1]:
            raise CorruptError(f"{self.path}: is damaged (its state is not what was written).")
        return LogState(*rows[0][:-1])

    @contextlib.contextmanager
    def _commit(self, state: LogState) -> Iterator[None]:
        """Makes what is written inside and the new state one transaction."""
        with _errors_of(self.path), self._transaction("IMMEDIATE"):
            yield
            _write_state(self._database, state)
        self._state = state
        self._acknowledge(state.sequence)

    def _acknowledge(self, sequence: int) -> None:
        # The change is on the disk whatever becomes of this, which only tells of a later loss.
        with contextlib.suppress(OSError):
            if self._acknowledged is not None:
                line = f"{sequence:020d} {_checksum(sequence):010d}\n"
                os.pwrite(self._acknowledged, line.encode(), 0)

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # SQLite itself ends it where the disk is full
                self._database.execute("ROLLBACK")
            raise


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


def salvage(path: Path) -> Salvage:
    """Reads what can be read of a file that may be damaged, and leaves out what cannot."""
    database = _connect(path, "rw")
    try:
        unreadable, kept = 0, {}
        for table in ("state", "changes", "documents", *_metadata_table(database)):
            rows, broken = _readable_rows(database, table)
            good = [row[:-1] for row in rows if _is_whole(row)]
            unreadable += broken + len(rows) - len(good)
            kept[table] = good
        states = [LogState(*row) for row in kept["state"]]
        changes: dict[str, Change] = {}
        for sequence, doc_id, content in sorted(kept["changes"], key=lambda row: row[0]):
            changes.pop(doc_id, None)
            changes[doc_id] = _change_of(sequence, doc_id, content)
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


def read_acknowledged(path: Path) -> int:
    """Returns the number of the last change that was acknowledged; 0 where nothing says it.

    Args:
        path: The file of changes.

    Raises:
        CorruptError: the file beside it is damaged.
    """
    beside = path.with_name(ACKNOWLEDGED)
    try:
        content = beside.read_bytes()
    except FileNotFoundError:
        return 0
    number, _, checksum = content.partition(b" ")
    if not content.strip(b"\0"):  # made and never written, for all that a power cut left
        return 0
    if not number.isdigit() or checksum != b"%010d\n" % _checksum(int(number)):
        raise CorruptError(f"{beside}: is damaged; {_way_out(path)}")
    return int(number)


def _way_out(path: Path) -> str:
    return f"`tfde index recover {path.parent}` keeps what can be kept and counts the rest."


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
    return _checksum(*row[:-1]) == row[-1]


def _change_of(sequence: int, doc_id: str, content: bytes | None) -> Change:
    return Change(sequence, doc_id, None if content is None else np.frombuffer(content, "<f4"))


def _bytes(vector: np.ndarray | None) -> bytes | None:
    return None if vector is None else vector.astype("<f4").tobytes()


def _put(
    database: sqlite3.Connection,
    first: int,
    doc_ids: Sequence[str],
    contents: Sequence[bytes | None],
) -> None:
    database.executemany(
        "INSERT OR REPLACE INTO changes VALUES (?, ?, ?, ?)",
        [
            (sequence, doc_id, content, _checksum(sequence, doc_id, content))
            for sequence, (doc_id, content) in enumerate(
                zip(doc_ids, contents, strict=True), start=first
            )
        ],
    )


def _put_documents(database: sqlite3.Connection, documents: Iterable[Document]) -> None:
    documents = list(documents)
    _delete_documents(database, [document.doc_id for document in documents])
    texts = [(d.doc_id, d.title, d.text) for d in documents]
    database.executemany(
        "INSERT INTO documents VALUES (?, ?, ?, ?)", [(*row, _checksum(*row)) for row in texts]
    )
    rows = [(d.doc_id, metadata_json(d.metadata)) for d in documents if d.metadata]
    if rows and not _metadata_table(database):
        database.execute(_METADATA)
    if rows:
        checked = [(*row, _checksum(*row)) for row in rows]
        database.executemany("INSERT INTO metadata VALUES (?, ?, ?)", checked)


def _delete_documents(database: sqlite3.Connection, doc_ids: Iterable[str]) -> None:
    for table in ("documents", *_metadata_table(database)):
        database.executemany(
            f"DELETE FROM {table} WHERE doc_id = ?", [(doc_id,) for doc_id in doc_ids]
        )


def _metadata_table(database: sqlite3.Connection) -> tuple[str, ...]:
    """Returns the name of the table of metadata, if there is one."""
    query = "SELECT name FROM sqlite_schema WHERE name = 'metadata'"
    return tuple(name for (name,) in database.execute(query))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    # `isolation_level=None`: transactions begin and end where this module says so.
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def _write_state(database: sqlite3.Connection, state: LogState) -> None:
    database.execute("DELETE FROM state")
    database.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (*state, _checksum(*state)))


def _checksum(*fields: str | int | bytes | None) -> int:
    """Returns a checksum: SQLite has none of its own for what lies in the file."""
    value = 0
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode()
        value = zlib.crc32(content, zlib.crc32(b"%d " % len(content), value))
    return value


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into ours, or into those of the operating system.

    Raises:
        CorruptError: the file is damaged.
        OSError: it cannot be read or written; a change under way is not made.
    """
    try:
        yield
    except UnicodeDecodeError as error:  # a damaged name in the schema
        raise CorruptError(f"{path}: is damaged ({error}).") from error
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if not name or name.startswith(_DAMAGE):  # without a name: text that is not UTF-8
            raise CorruptError(f"{path}: is damaged ({error}).") from error
        code = errno.ENOSPC if name == "SQLITE_FULL" else errno.EIO
        raise OSError(code, f"cannot be read or written ({error})", str(path)) from error
