"""Whether what runs gets on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Sees runs begin and end, from many threads."""

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}
        self._ended = 0.0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Counts its block as one run."""
        key = object()
        self._begun[key] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[key]
            self._ended = time.monotonic()

    def runs(self) -> bool:
        """Whether one is under way."""
        return bool(self._begun)

    def stalled_s(self) -> float:
        """Returns for how many seconds runs have been under way without one that ended."""
        oldest = min(list(self._begun.values()), default=None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest, self._ended)
