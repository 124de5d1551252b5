"""The K best of scores that arrive block by block, ties in the order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfde.storage.rows import Rows

_QUERIES_AT_ONCE = 512
_ROWS_AT_ONCE = 8192  # with 512 queries: 16 MB of scores


class TopK:
    """Keeps the `k` highest scores of each query over blocks of candidates.

    Equal scores keep the order of their positions, whatever the size of the blocks.

    Args:
        num_queries: Q.
        k: How many to keep; fewer if fewer candidates arrive.
    """

    def __init__(self, num_queries: int, k: int) -> None:
        self.k = k
        self.scores = np.empty((num_queries, 0), np.float32)
        self.positions = np.empty((num_queries, 0), np.int64)

    def update(self, scores: np.ndarray, first_position: int) -> None:
        """Takes the next block.

        Args:
            scores: `(Q, B)` float32, finite.
            first_position: Position of the block's first candidate; blocks come in order.
        """
        if self.scores.shape[1] < self.k:
            rows = np.arange(len(scores))
            columns = _first_k(scores, self.k)
            self._merge(rows, np.take_along_axis(scores, columns, 1), columns + first_position)
            return
        # Later candidates lose ties, so only a higher score than the last one kept matters.
        rows, columns = np.divmod(
            np.flatnonzero(scores > self.scores[:, -1:]), max(1, scores.shape[1])
        )
        if not len(rows):
            return
        touched, starts, counts = np.unique(rows, return_index=True, return_counts=True)
        slots = np.arange(len(rows)) - np.repeat(starts, counts)
        block_scores = np.full((len(touched), counts.max()), -np.inf, np.float32)
        block_positions = np.zeros(block_scores.shape, np.int64)
        at = (np.repeat(np.arange(len(touched)), counts), slots)
        block_scores[at] = scores[rows, columns]
        block_positions[at] = columns + first_position
        self._merge(touched, block_scores, block_positions)

    def _merge(self, rows: np.ndarray, scores: np.ndarray, positions: np.ndarray) -> None:
        scores = np.concatenate([self.scores[rows], scores], axis=1)
        positions = np.concatenate([self.positions[rows], positions], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
        scores = np.take_along_axis(scores, order, 1)
        positions = np.take_along_axis(positions, order, 1)
        if len(rows) == len(self.scores):
            self.scores, self.positions = scores, positions
        else:
            self.scores[rows], self.positions[rows] = scores, positions


def exact_top_k(
    parts: Sequence[Rows], queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `k` rows of highest dot product, ties in their order; each row is read once.

    Args:
        parts: Consecutive blocks of N rows, each `(rows, D)` floating.
        queries: `(Q, D)` float32.
        k: At least 1; K = min(k, N).

    Returns:
        scores `(Q, K)` float32, descending, and positions `(Q, K)` int64.
    """
    groups = [
        queries[start : start + _QUERIES_AT_ONCE]
        for start in range(0, len(queries), _QUERIES_AT_ONCE)
    ]
    best = [TopK(len(group), k) for group in groups]
    first = 0
    # Rows in the outer loop: what lies on the disk is read once for all queries.
    for part in parts:
        for start in range(0, len(part), _ROWS_AT_ONCE):
            block = np.asarray(part[start : start + _ROWS_AT_ONCE], np.float32)
            for group, top in zip(groups, best, strict=True):
                top.update(_dot_products(group, block), first)
            first += len(block)
    if not groups:
        k = min(k, sum(map(len, parts)))
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    return (
        np.concatenate([top.scores for top in best]),
        np.concatenate([top.positions for top in best]),
    )


def merge_top_k(parts: Sequence[tuple[np.ndarray, ...]], k: int) -> tuple[np.ndarray, ...]:
    """Returns the `k` best of several parts of the candidates, as `TopK` over all of them.

    Args:
        parts: Of each part scores `(Q, K)` float32, positions `(Q, K)` int64, and any other
            columns `(Q, K)`; in any order.
        k: How many to keep; fewer if there are fewer candidates.
    """
    columns = [np.concatenate(column, axis=1) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], -columns[0]), axis=1)[:, :k]
    return tuple(np.take_along_axis(column, order, 1) for column in columns)


def _dot_products(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if len(queries) == 1:
        # BLAS would wake its threads for each block and wait for them: 16 ms where cores are busy.
        return np.einsum("qd,nd->qn", queries, rows)
    return queries @ rows.T


def _first_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns columns `(Q, min(k, B))` of the highest scores, ascending, ties to the left."""
    if scores.shape[1] <= k:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    threshold = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
    above = scores > threshold
    equal = scores == threshold
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return np.nonzero(chosen)[1].reshape(len(scores), k)
