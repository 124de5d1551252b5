"""The changes to an index that itself never changes, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.change_rows import Change
from tfde.retrieval.live.masked_index import MaskedIndex
from tfde.retrieval.live.snapshot import Base, Snapshot

_ROOM = 256


class PendingChanges:
    """Which documents of a base index are gone, and the vectors that came instead of them.

    Vectors are only ever appended, so that snapshots handed out earlier stay what they were. One
    thread may change it; snapshots may be searched by any number.

    Args:
        base: The index below.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        rows, dim = base.index.shape
        self._base_rows = {doc_id: row for row, doc_id in enumerate(base.index.doc_ids)}
        self._base_dead = np.zeros(rows, bool)
        self._base_num_dead = 0
        self._rows: dict[str, int] = {}
        self._size = 0  # rows in use, dead ones included
        self._vectors = np.empty((_ROOM, dim), np.float32)
        self._doc_ids = np.empty(_ROOM, object)
        self._dead = np.zeros(_ROOM, bool)

    def __contains__(self, doc_id: str) -> bool:
        if doc_id in self._rows:
            return True
        row = self._base_rows.get(doc_id)
        return row is not None and not self._base_dead[row]

    def put(self, doc_ids: Sequence[str], vectors: np.ndarray) -> None:
        """Inserts or replaces documents.

        Args:
            doc_ids: Ids that differ.
            vectors: `(len(doc_ids), D)` float32.
        """
        self.remove(doc_ids)
        if self._size + len(doc_ids) > len(self._doc_ids):
            self._make_room(max(_ROOM, 2 * (len(self._rows) + len(doc_ids))))
        end = self._size + len(doc_ids)
        self._doc_ids[self._size : end] = doc_ids
        self._vectors[self._size : end] = vectors
        self._rows.update(zip(doc_ids, range(self._size, end), strict=True))
        self._size = end

    def remove(self, doc_ids: Iterable[str]) -> None:
        """Deletes documents; ids that are not there are passed over."""
        for doc_id in doc_ids:
            row = self._rows.pop(doc_id, None)
            if row is not None:
                self._dead[row] = True
            row = self._base_rows.get(doc_id)
            if row is not None and not self._base_dead[row]:
                self._base_dead[row] = True
                self._base_num_dead += 1

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes changes of different documents, in their order."""
        self.remove(change.doc_id for change in changes)
        added = [(c.doc_id, c.vector) for c in changes if c.vector is not None]
        if added:
            self.put([doc_id for doc_id, _ in added], np.stack([vector for _, vector in added]))

    def snapshot(self, sequence: int) -> Snapshot:
        """Returns what can be searched now, after the change `sequence`."""
        delta = ExactIndex([self._vectors[: self._size]], self._doc_ids[: self._size])
        num_dead = self._size - len(self._rows)
        return Snapshot(
            self._base,
            MaskedIndex(self._base.index, self._base_dead.copy(), self._base_num_dead),
            MaskedIndex(delta, self._dead[: self._size].copy(), num_dead),
            sequence,
        )

    def _make_room(self, room: int) -> None:
        """Moves the living rows to new arrays; earlier snapshots keep the old ones."""
        living = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        vectors = np.empty((room, self._vectors.shape[1]), np.float32)
        doc_ids = np.empty(room, object)
        vectors[: len(living)] = self._vectors[living]
        doc_ids[: len(living)] = self._doc_ids[living]
        self._vectors, self._doc_ids = vectors, doc_ids
        self._dead = np.zeros(room, bool)
        self._rows = {doc_id: row for row, doc_id in enumerate(self._rows)}
        self._size = len(living)
