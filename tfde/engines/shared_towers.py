"""Towers that several models of a server have alike: loaded once."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from weakref import WeakValueDictionary

from tfde.engines.tower_engine import (
    TowerFacts,
    TowerRunner,
    open_tower,
    read_facts,
    tower_file,
)

_Key = tuple[str, TowerFacts | None, bytes]

_lock = threading.Lock()
_open: WeakValueDictionary[_Key, TowerRunner] = WeakValueDictionary()


def shared_tower(engine: str, directory: str | Path) -> TowerRunner:
    """Returns what `open_tower` loads; where a tower of the same content is open, that one.

    Encoders and retrievers of a bundle each have a file of the same tower. What is no longer
    referred to is let go.

    Args:
        engine: Which one.
        directory: As given to `write_tower`.

    Raises:
        FileNotFoundError, CorruptError: as `open_tower`.
    """
    with _lock:
        key = _key(engine, directory)
        runner = _open.get(key)
        if runner is None:
            runner = _open[key] = open_tower(engine, directory)
        return runner


def _key(engine: str, directory: str | Path) -> _Key:
    """Returns what tells a tower from all others: its engine, facts, and a sum of its files."""
    path = tower_file(engine, directory)
    if not path.is_file():
        return engine, None, str(path).encode()
    facts = read_facts(path)._replace(ms=0.0, tensorflow_ms=0.0)  # which are of a use
    digest = hashlib.sha256()  # which processors have instructions for
    for part in sorted(path.parent.glob(f"{path.stem}.*")):
        if part.suffix != ".json":
            digest.update(f"{part.suffix} {part.stat().st_size}\n".encode())
            with open(part, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return engine, facts, digest.digest()
