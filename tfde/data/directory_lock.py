"""One process at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tfde.errors import ConfigError


@contextlib.contextmanager
def directory_lock(directory: Path, doing: str) -> Iterator[None]:
    """Keeps other processes out of a directory; the lock of a killed process is free.

    Args:
        directory: It must exist.
        doing: What the other process is doing there, for the error.

    Raises:
        ConfigError: another process has the lock.
    """
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{directory}: another process is {doing}.") from None
        yield
