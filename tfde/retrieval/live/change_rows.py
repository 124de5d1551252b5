"""Tables and rows of the file of changes: how they are written, and a checksum in each row."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.metadata import check_metadata, metadata_json
from tfde.errors import CorruptError, DataError
from tfde.types import Document

FORMAT = 1
TABLES = (
    "CREATE TABLE state (generation INTEGER NOT NULL, manifest TEXT NOT NULL,"
    " sequence INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE changes (sequence INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE,"
    " vector BLOB, checksum INTEGER NOT NULL)",
    "CREATE TABLE documents (doc_id TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL,"
    " checksum INTEGER NOT NULL)",
)
# Made with the first document that has any.
METADATA = (
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


def change_of(sequence: int, doc_id: str, content: bytes | None) -> Change:
    """Returns a change as its row says it."""
    return Change(sequence, doc_id, None if content is None else np.frombuffer(content, "<f4"))


def vector_bytes(vector: np.ndarray | None) -> bytes | None:
    """Returns what a row holds of a vector."""
    return None if vector is None else vector.astype("<f4").tobytes()


def put_changes(
    database: sqlite3.Connection,
    first: int,
    doc_ids: Sequence[str],
    contents: Sequence[bytes | None],
) -> None:
    """Writes the last change of each of some documents, numbered from `first` on."""
    database.executemany(
        "INSERT OR REPLACE INTO changes VALUES (?, ?, ?, ?)",
        [
            (sequence, doc_id, content, checksum_of(sequence, doc_id, content))
            for sequence, (doc_id, content) in enumerate(
                zip(doc_ids, contents, strict=True), start=first
            )
        ],
    )


def put_documents(database: sqlite3.Connection, documents: Iterable[Document]) -> None:
    """Writes titles, texts and metadata in place of those that were there."""
    documents = list(documents)
    delete_documents(database, [document.doc_id for document in documents])
    texts = [(d.doc_id, d.title, d.text) for d in documents]
    database.executemany(
        "INSERT INTO documents VALUES (?, ?, ?, ?)", [(*row, checksum_of(*row)) for row in texts]
    )
    rows = [(d.doc_id, metadata_json(d.metadata)) for d in documents if d.metadata]
    if rows and not metadata_tables(database):
        database.execute(METADATA)
    if rows:
        checked = [(*row, checksum_of(*row)) for row in rows]
        database.executemany("INSERT INTO metadata VALUES (?, ?, ?)", checked)


def delete_documents(database: sqlite3.Connection, doc_ids: Iterable[str]) -> None:
    """Removes titles, texts and metadata."""
    for table in ("documents", *metadata_tables(database)):
        database.executemany(
            f"DELETE FROM {table} WHERE doc_id = ?", [(doc_id,) for doc_id in doc_ids]
        )


def metadata_tables(database: sqlite3.Connection) -> tuple[str, ...]:
    """Returns the name of the table of metadata, if there is one."""
    query = "SELECT name FROM sqlite_schema WHERE name = 'metadata'"
    return tuple(name for (name,) in database.execute(query))


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Opens a file; transactions begin and end where a caller says so."""
    address = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def write_state(database: sqlite3.Connection, state: LogState) -> None:
    """Writes the state in place of the one before."""
    database.execute("DELETE FROM state")
    database.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (*state, checksum_of(*state)))


def checksum_of(*fields: str | int | bytes | None) -> int:
    """Returns a checksum: SQLite has none of its own for what lies in the file."""
    value = 0
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode()
        value = zlib.crc32(content, zlib.crc32(b"%d " % len(content), value))
    return value


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
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


def check_texts(documents: Sequence[Document]) -> None:
    """Refuses documents that cannot be written.

    Raises:
        DataError: an id, title or text is no text; metadata that are none.
    """
    for number, document in enumerate(documents, start=1):
        check_metadata("documents", number, document.metadata)
        for name, value in zip(("id", "title", "text"), document[:3], strict=True):
            try:
                value.encode()
            except (AttributeError, UnicodeEncodeError):
                rule = f"a document's {name} must be Unicode text."
                raise DataError("documents", number, rule, value) from None
