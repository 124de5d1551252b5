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
    require_engine,
    tower_file,
)
from tfde.errors import CorruptError

_Key = tuple[str, TowerFacts, bytes]

_lock = threading.Lock()
_open: WeakValueDictionary[_Key, TowerRunner] = WeakValueDictionary()


def shared_tower(engine: str, directory: str | Path) -> TowerRunner:
    """Returns what `open_tower` loads; where a tower of the same content is open, that one.

    The encoders and retrievers of a bundle each have a file of a tower, often of the same. What is
    no longer referred to is let go.

    Args:
        engine: Which one.
        directory: As given to `write_tower`.

    Raises:
        FileNotFoundError, CorruptError, MissingExtraError: as `open_tower`.
    """
    require_engine(engine)
    key = _key(engine, directory)
    if key is None:
        return open_tower(engine, directory)  # which says what is wrong
    with _lock:
        runner = _open.get(key)
        if runner is None:
            runner = _open[key] = open_tower(engine, directory)
        return runner


def _key(engine: str, directory: str | Path) -> _Key | None:
    """Returns what tells a tower from all others; `None` where its files cannot be read."""
    path = tower_file(engine, directory)
    digest = hashlib.sha256()
    try:
        facts = read_facts(path)._replace(ms=0.0, tensorflow_ms=0.0)  # the times differ by use
        hash(facts)
        for part in sorted(path.parent.glob(f"{path.stem}.*")):
            if part.suffix != ".json":
                digest.update(f"{part.suffix} {part.stat().st_size}\n".encode())
                with open(part, "rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
    except (OSError, TypeError, CorruptError):
        return None
    return engine, facts, digest.digest()
