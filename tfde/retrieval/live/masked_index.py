"""An index of which some documents are deleted; a search finds the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfde.retrieval.index import Index
from tfde.retrieval.index_directory import check_queries
from tfde.retrieval.top_k import exact_top_k
from tfde.storage.rows import SelectedRows

_SPARE = 16
_EXACT_FROM = 1 / 8  # of the rows: from there on scoring all costs less than asking for so many


@dataclass(frozen=True)
class MaskedIndex:
    """An index that never changes and a mask of its deleted rows.

    Args:
        index: The rows, deleted ones included.
        dead: `(N,)` bool, which of them are deleted.
        num_dead: How many.
    """

    index: Index
    dead: np.ndarray
    num_dead: int

    @property
    def num_living(self) -> int:
        """How many rows are not deleted."""
        return self.index.shape[0] - self.num_dead

    def living(self) -> np.ndarray:
        """Returns the positions of the rows that are not deleted, `(R,)` int64, ascending."""
        return np.flatnonzero(~self.dead)

    def doc_ids(self) -> np.ndarray:
        """Returns the ids of the rows that are not deleted, `(R,)` str."""
        return self.index.doc_ids[self.living()]

    def rows(self) -> SelectedRows:
        """Returns the vectors of the rows that are not deleted, `(R, D)` float32."""
        return SelectedRows(self.index.vectors(), self.living())

    def search(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the `k` rows of highest dot product that are not deleted.

        The index is asked for more rows than wanted; where too many of them are deleted, for
        twice as many, and at last every row is scored.

        Args:
            query_embeddings: `(Q, D)` floating.
            k: At least 1; K = min(k, rows that are not deleted).

        Returns:
            scores `(Q, K)` float32, descending, positions `(Q, K)` int64 and doc_ids `(Q, K)`.

        Raises:
            ConfigError: `k` below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """
        queries = check_queries(query_embeddings, k, self.index.shape[1])
        k = min(k, self.num_living)
        if k and self.num_dead:
            scores, positions = self._search_living(queries, k)
        elif k:
            scores, positions = self.index.search_positions(queries, k)
        else:
            scores = np.empty((len(queries), 0), np.float32)
            positions = np.empty((len(queries), 0), np.int64)
        return scores, positions, self.index.doc_ids[positions]

    def _search_living(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty((len(queries), k), np.float32)
        positions = np.empty((len(queries), k), np.int64)
        short = np.arange(len(queries))
        asked = k + min(self.num_dead, max(k, _SPARE))
        while len(short) and asked < _EXACT_FROM * self.index.shape[0]:
            found_scores, found = self.index.search_positions(queries[short], asked)
            dead = self.dead[found]
            enough = dead.sum(axis=1) <= asked - k
            first = np.argsort(dead[enough], axis=1, kind="stable")[:, :k]
            scores[short[enough]] = np.take_along_axis(found_scores[enough], first, 1)
            positions[short[enough]] = np.take_along_axis(found[enough], first, 1)
            short = short[~enough]
            asked *= 2
        if len(short):
            scores[short], found = exact_top_k([self.rows()], queries[short], k)
            positions[short] = self.living()[found]
        return scores, positions
