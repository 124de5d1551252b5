"""An index that grows and shrinks while it is searched; every acknowledged change survives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.argument_types import typed
from tfde.errors import ConfigError, DataError, MismatchError, TfdeError, require
from tfde.retrieval.index import Index
from tfde.retrieval.index_directory import (
    CHANGING,
    check_doc_ids,
    check_embeddings,
    search_one_or_many,
)
from tfde.retrieval.live.base_indexes import (
    FIRST,
    NOTHING,
    LiveFiles,
    Place,
    place_of,
    read_files,
    read_log,
    remove_others,
    write_base,
)
from tfde.retrieval.live.change_log import FILE, ChangeLog
from tfde.retrieval.live.change_rows import Change, LogState, check_texts
from tfde.retrieval.live.pending_changes import PendingChanges
from tfde.retrieval.live.snapshot import Snapshot
from tfde.retrieval.live.status import LiveStatus, status_of
from tfde.storage.atomic import directory_lock
from tfde.storage.files import check_id
from tfde.types import Document

_ATTEMPTS = 10  # at a search between two changes


class Deletion(NamedTuple):
    """What a deletion did: the number of its last change, ids deleted, ids that were not there."""

    sequence: int
    deleted: list[str]
    unknown: list[str]


class LiveHits(NamedTuple):
    """What a search of a live index found, all of one moment.

    `scores` and `doc_ids` as `LiveIndex.search`; `documents`, those found whose title and text
    came through `add`, by id; `version` as `LiveIndex.version`.
    """

    scores: np.ndarray
    doc_ids: np.ndarray
    documents: dict[str, Document]
    version: str


class LiveIndex:
    """An index directory and the changes made to it since; use `LiveIndex.open`.

    The index that `tfde build-index` wrote never changes. Changes go to `changes.sqlite` beside
    it and are acknowledged, that is a method returns, once they are on the disk; from then on
    searches see them. `compact` builds the index anew.

    Any number of threads may search; they wait neither for a change nor for a compaction. Changes
    from several threads are made one after the other. One process at a time can open a directory
    for writing; others read the state of the moment in which they open it, or of their last
    `search_documents`.

    Args:
        path: The directory.
        files: What it holds.
        place: `place_of` the directory before they were read.
    """

    def __init__(self, path: Path, files: LiveFiles, place: Place) -> None:
        self.path = path
        self._place = place
        self.fingerprint = files.base.index.fingerprint
        self.parents = files.base.index.parents
        self._pending = _pending_of(files)
        self._snapshot = self._pending.snapshot(files.sequence)
        self._log: ChangeLog | None = None  # where the directory is open for writing
        self._reader: ChangeLog | None = None
        self._reading = threading.Lock()
        self._locks = contextlib.ExitStack()
        self._changing = threading.Lock()
        self._compacting = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False, verify: bool = True) -> LiveIndex:
        """Opens an index directory.

        Args:
            path: What `tfde build-index` or `save` of an index wrote, changed since or not.
            write: Whether it will be changed. Then what a killed process left is removed.
            verify: Compare checksums (reads every file once), not only sizes.

        Raises:
            FileNotFoundError: no index there.
            ConfigError: `write`, and another process has it open for writing.
            CorruptError: a file is missing or differs.
        """
        path = Path(path)
        if not write:
            place = place_of(path)
            return cls(path, read_files(path, verify=verify), place)
        if not (path / FILE).is_file():
            read_log(path, verify=False)  # refuses what is no index
        with contextlib.ExitStack() as stack:
            stack.enter_context(directory_lock(path, CHANGING))
            files = read_files(path, verify=verify)
            if not (path / FILE).exists():
                ChangeLog.create(path / FILE, LogState(FIRST, files.base.manifest, 0))
            remove_others(path, files.base.generation)
            log = ChangeLog(path / FILE, write=True)
            stack.callback(log.close)
            index = cls(path, files, place_of(path))
            index._log, index._locks = log, stack.pop_all()
        return index

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self.shape[0]

    def __repr__(self) -> str:
        count, numbers = self.shape
        return f"LiveIndex({str(self.path)!r}: {count:,} documents, {numbers} numbers)"

    @property
    def shape(self) -> tuple[int, int]:
        """Documents that can be found, and the length of a vector."""
        snapshot = self._snapshot
        return snapshot.num_documents, snapshot.base.index.shape[1]

    @property
    def version(self) -> str:
        """Generation and number of the last change, as `2.17`; searches see at least these."""
        return _version(self._snapshot)

    @property
    def doc_ids(self) -> np.ndarray:
        """Ids of all documents, `(N,)` str: those of the base, then others by last change."""
        return self._snapshot.doc_ids()

    def vectors(self) -> np.ndarray:
        """Returns the vectors of all documents, `(N, D)` float32, in memory."""
        return self._snapshot.vectors()

    @typed
    def search(self, query_embeddings: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns about the `k` documents of highest dot product, as the base index finds them.

        Documents that were added are always found, and deleted ones never.

        Args:
            query_embeddings: `(Q, D)` floating.
            k: At least 1; K = min(k, documents).

        Returns:
            scores `(Q, K)` float32, descending, and doc_ids `(Q, K)` str.

        Raises:
            ConfigError: `k` below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """
        return search_one_or_many(self._snapshot.search, query_embeddings, k)

    @typed
    def search_documents(self, query_embeddings: np.ndarray, k: int) -> LiveHits:
        """Returns what `search` finds with the texts of what was added.

        Where another process changes the directory, its changes are taken up before.

        Args:
            query_embeddings: `(Q, D)` floating.
            k: At least 1.

        Raises:
            ConfigError, MismatchError: as `search`; the directory holds an index of another model
                by now.
            CorruptError: a text differs from what was written.
        """
        for _ in range(_ATTEMPTS):
            self._follow()
            snapshot = self._snapshot
            scores, doc_ids = snapshot.search(query_embeddings, k)
            sequence, documents = self._read_documents(set(doc_ids.ravel().tolist()))
            # Else a text may not be the one that was scored.
            if sequence == snapshot.sequence and self._is_here(snapshot):
                return LiveHits(scores, doc_ids, documents, _version(snapshot))
            self._catch_up()
        return self._search_at_rest(query_embeddings, k)

    def check_model(self, fingerprint: str) -> None:
        """Refuses vectors of another model; an index without fingerprint takes any.

        Raises:
            MismatchError: the index was made with another model.
        """
        if self.fingerprint and fingerprint != self.fingerprint:
            raise MismatchError(
                f"the index was made with model {self.fingerprint}, not with model"
                f" {fingerprint or 'unknown'}; documents must be encoded with the index's model."
            )

    @typed
    def add(
        self, documents: Sequence[Document], embeddings: np.ndarray, *, fingerprint: str
    ) -> int:
        """Inserts documents, or replaces those with the same ids, all or none.

        Args:
            documents: With ids that differ.
            embeddings: `(len(documents), D)` floating.
            fingerprint: Of the model that encoded them.

        Returns:
            The number of the last change, one a document.

        Raises:
            ConfigError: not open for writing; no documents, or embeddings that are not
                finite or too large to be searched.
            MismatchError: embeddings of another model, dimension or number.
            DataError: what is no document; an id holds white space or stands twice; a title or
                text is no text.
            OSError: the changes cannot be written; then nothing is changed.
        """
        for number, document in enumerate(documents, start=1):
            if not isinstance(document, Document):
                rule = "must be a tfde.Document(doc_id, title, text)."
                raise DataError("documents", number, rule, document)
        self.check_model(fingerprint)
        with np.errstate(over="ignore"):  # infinity is told below
            vectors = np.ascontiguousarray(embeddings, np.float32)
        check_embeddings(vectors)
        if vectors.shape[1] != self.shape[1]:
            raise MismatchError(
                f"`embeddings` must be (documents, {self.shape[1]}), the index's dimension."
                f" Received: shape {vectors.shape}"
            )
        doc_ids = check_doc_ids([document.doc_id for document in documents], len(vectors))
        check_texts(documents)
        with self._change() as log:
            log.add(documents, vectors)
            self._pending.put(doc_ids, vectors)
            self._snapshot = self._pending.snapshot(log.state.sequence)
            return log.state.sequence

    def delete(self, doc_ids: Sequence[str]) -> Deletion:
        """Deletes documents, all or none of those that are there.

        Args:
            doc_ids: One that stands twice counts once.

        Raises:
            ConfigError: not open for writing, or `doc_ids` is one string.
            DataError: an id is no text or holds white space.
            OSError: the changes cannot be written; then nothing is changed.
        """
        require(not isinstance(doc_ids, str), "doc_ids", "a list of ids", doc_ids)
        wanted = dict.fromkeys(
            check_id(doc_id, "doc_ids", number) for number, doc_id in enumerate(doc_ids, start=1)
        )
        with self._change() as log:
            deleted = [doc_id for doc_id in wanted if doc_id in self._pending]
            if deleted:
                log.delete(deleted)
                self._pending.remove(deleted)
                self._snapshot = self._pending.snapshot(log.state.sequence)
            unknown = list(wanted.keys() - set(deleted))
            return Deletion(log.state.sequence, deleted, sorted(unknown))

    def compact(self) -> bool:
        """Builds the index anew of all documents and puts it in the place of index and changes.

        Searches and changes go on meanwhile. Codes and leaves of a ScaNN index are learned anew;
        parameters that its size had decided follow the new size.

        Returns:
            Whether there was anything to do.

        Raises:
            ConfigError: not open for writing, a compaction is under way, or all is deleted.
            OSError: the new index cannot be written; then nothing is changed.
        """
        if not self._compacting.acquire(blocking=False):
            raise ConfigError(f"{self.path}: a compaction of this index is under way.")
        try:
            with self._changing:
                log, snapshot = self._writable(), self._snapshot
                if not log.has_changes():  # of documents that have come and gone again, too
                    return False
            if not snapshot.num_documents:
                raise ConfigError(
                    f"{self.path}: all documents are deleted, and an index holds at least one;"
                    " add some before the compaction."
                )
            try:
                base = write_base(self.path, snapshot)
                pending = PendingChanges(base)
                with self._change():
                    pending.apply(log.read(after=snapshot.sequence)[1])
                    log.switch(base.generation, base.manifest, snapshot.sequence)
                    self._pending, self._snapshot = pending, pending.snapshot(log.state.sequence)
            finally:
                remove_others(self.path, log.state.generation)
            return True
        finally:
            self._compacting.release()

    def documents(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        """Returns by id those documents whose title and text came through `add`.

        Raises:
            ConfigError: `doc_ids` is one string.
            CorruptError: one differs from what was written.
        """
        require(not isinstance(doc_ids, str), "doc_ids", "a list of ids", doc_ids)
        return self._read_documents(doc_ids)[1]

    def status(self) -> LiveStatus:
        """Returns the sizes of the index."""
        log_files = (self.path / f"{FILE}{suffix}" for suffix in ("", "-wal"))
        changes_bytes = sum(file.stat().st_size for file in log_files if file.is_file())
        return status_of(self._snapshot, changes_bytes)

    def close(self) -> None:
        """Ends writing, once a change or compaction under way is done; searches still work."""
        with self._compacting, self._changing, self._reading:
            if self._reader is not None:
                self._reader.close()
            self._log = self._reader = None
            self._locks.close()

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _change(self) -> Iterator[ChangeLog]:
        """Holds what changes the index, and gives the file of changes."""
        with self._changing:
            log = self._writable()
            try:
                yield log
            except BaseException:
                # A signal, or a lack of memory, may come when the change is on the disk already.
                with contextlib.suppress(TfdeError, OSError):
                    self._take_up(*log.read(after=self._snapshot.sequence))
                raise

    def _search_at_rest(self, query_embeddings: np.ndarray, k: int) -> LiveHits:
        """Does what `search_documents` does where changes come faster than searches end.

        This process changes nothing meanwhile, and what another one changes is not looked at.
        """
        with self._changing, self._reading:
            reader = self._open_reader()
            while True:
                with contextlib.nullcontext() if reader is None else reader.moment():
                    if reader is not None and self._log is None:
                        self._take_up(*reader.read(after=self._snapshot.sequence))
                    snapshot = self._snapshot
                    scores, doc_ids = snapshot.search(query_embeddings, k)
                    wanted = set(doc_ids.ravel().tolist())
                    sequence, documents = (0, {}) if reader is None else reader.documents(wanted)
                # Else another process has built a new base since the moment began.
                if reader is None or sequence == snapshot.sequence:
                    return LiveHits(scores, doc_ids, documents, _version(snapshot))

    def _read_documents(self, doc_ids: Iterable[str]) -> tuple[int, dict[str, Document]]:
        with self._reading:
            reader = self._open_reader()
            return (0, {}) if reader is None else reader.documents(doc_ids)

    def _open_reader(self) -> ChangeLog | None:
        """Returns what reads the changes, `None` where there are none; `_reading` is held."""
        if self._reader is None and (self.path / FILE).is_file():
            self._reader = ChangeLog(self.path / FILE, write=False)
        return self._reader

    def _follow(self) -> None:
        """Opens the index that was built anew in this place; files of the old one never change."""
        if self._is_here():
            return
        with self._changing:
            if self._is_here():  # another thread was here
                return
            place, files = place_of(self.path), read_files(self.path, verify=False)
            self._check_base(files.base.index)
            pending = _pending_of(files)
            with self._reading:
                if self._reader is not None:
                    self._reader.close()
                    self._reader = None
                self._pending, self._snapshot = pending, pending.snapshot(files.sequence)
                self._place = place

    def _is_here(self, snapshot: Snapshot | None = None) -> bool:
        """Whether the directory is the one that was opened, and a snapshot of it the newest.

        Nothing stands there while one directory takes the place of another.
        """
        if self._log is not None:
            return True
        newest = snapshot is None or snapshot is self._snapshot
        return newest and place_of(self.path) in (self._place, NOTHING)

    def _catch_up(self) -> None:
        """Waits for a change under way, or takes up those of the process that writes."""
        with self._changing:
            if self._log is not None:
                return
            with self._reading:
                if self._reader is None:
                    return
                state, changes = self._reader.read(after=self._snapshot.sequence)
            self._take_up(state, changes)

    def _take_up(self, state: LogState, changes: Sequence[Change]) -> None:
        """Makes what another process has changed the newest snapshot; `_changing` is held."""
        sequence, below = state.sequence, self._snapshot.below
        # Another index may have been built in this place: the first generation again.
        if (state.generation, state.manifest) == (below.generation, below.manifest):
            self._pending.apply(changes)
        else:
            files = read_files(self.path, verify=False)
            self._check_base(files.base.index)
            self._pending, sequence = _pending_of(files), files.sequence
        self._snapshot = self._pending.snapshot(sequence)

    def _check_base(self, index: Index) -> None:
        found = (index.fingerprint, index.parents, index.shape[1])
        if found != (self.fingerprint, self.parents, self.shape[1]):
            raise MismatchError(
                f"{self.path}: holds another index now, made with model"
                f" {index.fingerprint or 'unknown'} and not with {self.fingerprint or 'unknown'},"
                " or otherwise; open it again."
            )

    def _writable(self) -> ChangeLog:
        if self._log is None:
            raise ConfigError(f"{self.path}: must be open for writing: LiveIndex.open(write=True).")
        return self._log


def _pending_of(files: LiveFiles) -> PendingChanges:
    pending = PendingChanges(files.base)
    pending.apply(files.changes)
    return pending


def _version(snapshot: Snapshot) -> str:
    return f"{snapshot.below.generation}.{snapshot.sequence}"
