"""A set of 63-bit keys in about ten bytes each."""

from __future__ import annotations

import numpy as np

_MIN_RECENT = 1 << 16


class KeySet:
    """Which keys were seen, in a sorted array and a small set of the most recent ones."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.int64)
        self._recent: set[int] = set()

    def add(self, key: int) -> bool:
        """Notes a key; returns whether it is new."""
        if key in self._recent:
            return False
        place = np.searchsorted(self._sorted, key)
        if place < len(self._sorted) and self._sorted[place] == key:
            return False
        self._recent.add(key)
        # The set may grow with the array, so that all sorting together costs little.
        if len(self._recent) > max(_MIN_RECENT, len(self._sorted) // 16):
            recent = np.fromiter(self._recent, np.int64, len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, recent]))
            self._recent.clear()
        return True
