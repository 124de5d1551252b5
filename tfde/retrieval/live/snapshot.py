"""One state of a live index: what a search sees from its first vector to its last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfde.retrieval.index import Index
from tfde.retrieval.live.masked_index import MaskedIndex
from tfde.retrieval.top_k import merge_top_k


@dataclass(frozen=True)
class Base:
    """The index below the changes."""

    index: Index
    generation: int  # 1: as it was first built; each compaction makes the next
    manifest: str  # sha256 of its manifest
    num_bytes: int  # of its files


class Snapshot(NamedTuple):
    """The base index and what was added since; nothing of it ever changes.

    Documents are in this order, which also breaks ties: those of the base, then the others by
    their last change. A compaction keeps it.
    """

    below: Base
    base: MaskedIndex
    delta: MaskedIndex
    sequence: int  # of the last change

    @property
    def num_documents(self) -> int:
        """How many documents can be found."""
        return self.base.num_living + self.delta.num_living

    @property
    def num_changed(self) -> int:
        """How many documents were added since the base was built, or are deleted from it."""
        return self.base.num_dead + self.delta.num_living

    def search(self, query_embeddings: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores `(Q, K)` float32, descending, and doc_ids `(Q, K)` str.

        Raises:
            As `MaskedIndex.search`.
        """
        base = self.base.search(query_embeddings, k)
        scores, positions, doc_ids = self.delta.search(query_embeddings, k)
        delta = (scores, positions + self.base.index.shape[0], doc_ids)
        found_scores, _, found = merge_top_k([base, delta], k)
        return found_scores, found

    def doc_ids(self) -> np.ndarray:
        """Returns the ids of all documents, `(N,)` str."""
        return np.concatenate([self.base.doc_ids(), self.delta.doc_ids()])

    def vectors(self) -> np.ndarray:
        """Returns the vectors of all documents, `(N, D)` float32, in memory."""
        return np.concatenate([self.base.rows()[:], self.delta.rows()[:]])
