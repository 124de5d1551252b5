"""One process at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tfde.errors import ConfigError

LOCK = ".lock"


@contextlib.contextmanager
def directory_lock(directory: Path, doing: str) -> Iterator[None]:
    """Keeps other processes out of a directory; the lock of a killed process is free.

    Args:
        directory: It must exist.
        doing: What the other process is doing there, for the error.

    Raises:
        ConfigError: another process has the lock; the message gives its pid.
    """
    with (directory / LOCK).open("a+") as file:
        file.seek(0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = f"another process ({file.read().strip() or 'just started'})"
            raise ConfigError(f"{directory}: {process} is {doing}.") from None
        file.truncate()
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # the same directory again has the same contents
