"""The changes to an index on the disk: what was committed here is acknowledged, and survives."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tfde.errors import CorruptError
from tfde.retrieval.index_directory import CHANGES
from tfde.retrieval.live.change_rows import (
    FORMAT,
    METADATA,
    TABLES,
    Change,
    LogState,
    change_of,
    checksum_of,
    connect,
    delete_documents,
    errors_of,
    metadata_tables,
    put_changes,
    put_documents,
    vector_bytes,
    write_state,
)
from tfde.retrieval.live.write_ahead_log import check_write_ahead_log
from tfde.storage.atomic import atomic_file
from tfde.types import Document

FILE = CHANGES
ACKNOWLEDGED = "changes.acknowledged"
_CHECKPOINT_PAGES = 128  # half a megabyte waits in SQLite's own log, not four
_IDS_A_QUERY = 500  # older SQLites take 999 places


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
        # Before the state: another process may go on.
        acknowledged = read_acknowledged(path) or 0
        check_write_ahead_log(path, way_out(path))
        self._acknowledged: int | None = None
        with errors_of(path):
            self._database = connect(path, "rw" if write else "ro")
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
                        f" {acknowledged} was acknowledged; {way_out(path)}"
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
        with atomic_file(path) as temporary, errors_of(path):
            database = connect(temporary, "rwc")
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(f"PRAGMA user_version = {FORMAT}")
                for table in TABLES:
                    database.execute(table)
                database.execute("BEGIN")
                for sequence, doc_id, vector in changes:
                    put_changes(database, sequence, [doc_id], [vector_bytes(vector)])
                put_documents(database, documents)
                write_state(database, state)
                database.execute("COMMIT")
            finally:
                database.close()

    def check(self) -> None:
        """Reads the whole file.

        Raises:
            CorruptError: its structure is damaged.
        """
        with errors_of(self.path):
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
        with errors_of(self.path), self._transaction("DEFERRED"):
            state = self._read_state()
            query = "SELECT * FROM changes WHERE sequence > ? ORDER BY sequence"
            rows = self._database.execute(query, (after,))
            return state, [self._change(*row) for row in rows]

    @contextlib.contextmanager
    def moment(self) -> Iterator[None]:
        """Within, `read` and `documents` see the file as it is when this begins."""
        with errors_of(self.path), self._transaction("DEFERRED"):
            self._read_state()  # SQLite's transaction sees what its first reading saw
            yield

    def has_changes(self) -> bool:
        """Returns whether there are changes since the base was built."""
        with errors_of(self.path):
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
        contents = [vector_bytes(vector) for vector in vectors]
        doc_ids = [document.doc_id for document in documents]
        with self._commit(self._after(len(doc_ids))):
            put_changes(self._database, self._state.sequence + 1, doc_ids, contents)
            put_documents(self._database, documents)

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Commits the deletion of documents with these ids, which differ.

        Raises:
            OSError: it cannot be written; then nothing is changed.
        """
        with self._commit(self._after(len(doc_ids))):
            put_changes(self._database, self._state.sequence + 1, doc_ids, [None] * len(doc_ids))
            delete_documents(self._database, doc_ids)

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
        with errors_of(self.path), self._transaction("DEFERRED"):
            sequence = self._read_state().sequence
            for start in range(0, len(wanted), _IDS_A_QUERY):
                part = wanted[start : start + _IDS_A_QUERY]
                places = ", ".join("?" * len(part))
                query = f"SELECT * FROM documents WHERE doc_id IN ({places})"
                for *fields, checksum in self._database.execute(query, part):
                    if checksum_of(*fields) != checksum:
                        raise CorruptError(f"{self.path}: document {fields[0]!r} is damaged.")
                    found[fields[0]] = Document(*fields)
                for table in metadata_tables(self._database):
                    query = f"SELECT * FROM {table} WHERE doc_id IN ({places})"
                    for doc_id, content, checksum in self._database.execute(query, part):
                        if checksum_of(doc_id, content) != checksum or doc_id not in found:
                            raise CorruptError(f"{self.path}: metadata of {doc_id!r} is damaged.")
                        found[doc_id] = found[doc_id]._replace(metadata=json.loads(content))
        return sequence, found

    def copy_to(self, path: Path) -> None:
        """Writes the file as it is at one moment, whatever another process changes meanwhile."""
        with errors_of(path):
            copy = connect(path, "rwc")
            try:
                self._database.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """Closes the file; whoever closes it last leaves one file, without SQLite's own log."""
        with errors_of(self.path):
            self._database.close()
        if self._acknowledged is not None:
            os.close(self._acknowledged)
            self._acknowledged = None

    def _after(self, changes: int) -> LogState:
        return self._state._replace(sequence=self._state.sequence + changes)

    def _change(self, sequence: int, doc_id: str, content: bytes | None, checksum: int) -> Change:
        if checksum_of(sequence, doc_id, content) != checksum:
            rule = f"change {sequence} is damaged; {way_out(self.path)}"
            raise CorruptError(f"{self.path}: {rule}")
        return change_of(sequence, doc_id, content)

    def _check_format(self) -> None:
        (found,) = self._database.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            raise CorruptError(f"{self.path}: has format {found}; expected {FORMAT}.")
        # SQLite believes its schema, whatever became of it.
        tables = self._database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        if [table for (table,) in tables if table != METADATA] != list(TABLES):
            raise CorruptError(f"{self.path}: is damaged (its tables are not what was made).")

    def _read_state(self) -> LogState:
        rows = self._database.execute("SELECT * FROM state").fetchall()
        if len(rows) != 1 or checksum_of(*rows[0][:-1]) != rows[0][-1]:
            raise CorruptError(f"{self.path}: is damaged (its state is not what was written).")
        return LogState(*rows[0][:-1])

    @contextlib.contextmanager
    def _commit(self, state: LogState) -> Iterator[None]:
        """Makes what is written inside and the new state one transaction."""
        try:
            with errors_of(self.path), self._transaction("IMMEDIATE"):
                yield
                write_state(self._database, state)
        except BaseException:
            # A signal may come when all is on the disk already.
            with contextlib.suppress(CorruptError, OSError), errors_of(self.path):
                self._state = self._read_state()
            raise
        self._state = state
        self._acknowledge(state.sequence)

    def _acknowledge(self, sequence: int) -> None:
        # The change is on the disk whatever becomes of this, which only tells of a later loss.
        with contextlib.suppress(OSError):
            if self._acknowledged is not None:
                os.pwrite(self._acknowledged, _acknowledged_line(sequence), 0)

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        if self._database.in_transaction:  # within `moment`
            yield
            return
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # SQLite itself ends it where the disk is full
                self._database.execute("ROLLBACK")
            raise


def read_acknowledged(path: Path) -> int | None:
    """Returns the number of the last change that was acknowledged; `None` where nothing says it.

    Args:
        path: The file of changes.

    Raises:
        CorruptError: the file beside it is damaged.
    """
    beside = path.with_name(ACKNOWLEDGED)
    try:
        content = beside.read_bytes()
    except FileNotFoundError:
        return None
    number, _, _ = content.partition(b" ")
    if not content.strip(b"\0"):  # made and never written, for all that a power cut left
        return None
    if not number.isdigit() or content != _acknowledged_line(int(number)):
        raise CorruptError(f"{beside}: is damaged; {way_out(path)}")
    return int(number)


def write_acknowledged(path: Path, sequence: int) -> None:
    """Writes the number of the last change beside a new file of changes, atomically."""
    with atomic_file(path.with_name(ACKNOWLEDGED)) as temporary:
        temporary.write_bytes(_acknowledged_line(sequence))


def _acknowledged_line(sequence: int) -> bytes:
    return f"{sequence:020d} {checksum_of(sequence):010d}\n".encode()


def way_out(path: Path) -> str:
    """Returns what to do about a damaged file of changes."""
    return f"`tfde index recover {path.parent}` keeps what can be kept and counts the rest."
