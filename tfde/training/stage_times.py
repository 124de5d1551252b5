"""Where the time of a stage went: steps, waiting for batches, validation, mining, saving."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

STEPS, BATCHES, VALIDATION = "steps", "waiting for batches", "validation"
FINDING_TOPICS, MINING, SAVING = "finding topics", "mining", "saving"


class StageTimes:
    """A clock that is always set to one part of the work.

    Attributes:
        seconds: Part -> seconds until now.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(
            (FINDING_TOPICS, STEPS, BATCHES, VALIDATION, MINING, SAVING), 0.0
        )
        self._part: str | None = None
        self._since = 0.0

    def enter(self, part: str | None) -> str | None:
        """Sets the clock to another part, or stops it; returns the one it was set to."""
        now, before = time.perf_counter(), self._part
        if before is not None:
            self.seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Within the block the clock is set to this part, then as it was."""
        before = self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def __str__(self) -> str:
        """Returns the whole, and the parts that took a second or more, in seconds."""
        whole = sum(self.seconds.values())
        parts = [f"{part} {taken:.0f} s" for part, taken in self.seconds.items() if taken >= 1]
        return f"{whole:.0f} s" + (f" ({', '.join(parts)})" if parts else "")
