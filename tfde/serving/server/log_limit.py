"""Warnings that come again and again."""

from __future__ import annotations

import logging
import threading
import time


class RepeatFilter(logging.Filter):
    """Lets a warning pass once in a time, and then tells how often it has come meanwhile.

    Warnings and errors are the same if they come from the same line of code. What is less than a
    warning passes.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}  # place: last time, held back

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record passes."""
        if record.levelno < logging.WARNING:
            return True
        place = record.pathname, record.lineno
        now = time.monotonic()
        with self._lock:
            last, held = self._seen.get(place, (None, 0))
            if last is not None and now - last < self._seconds:
                self._seen[place] = last, held + 1
                return False
            self._seen[place] = now, 0
        if held:
            record.msg = f"{record.msg} ({held} more like it since the last)"
        return True
