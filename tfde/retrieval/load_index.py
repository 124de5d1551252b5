"""Opening an index directory of any kind."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.base_indexes import read_files, read_log
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.scann_index import ScannIndex


def load_index(path: str | Path, *, verify: bool = True) -> ExactIndex | ScannIndex | LiveIndex:
    """Returns the index in a directory: as it is now, where it was changed since it was built.

    Args:
        path: What `save` wrote.
        verify: Compare checksums (reads every file once), not only sizes.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: a file is missing or differs.
    """
    path = Path(path)
    files = read_files(path, verify=verify)
    return LiveIndex(path, files) if files.changes else files.base.index


def index_version(path: str | Path) -> str:
    """Returns a sha256 in hex that changes with every change of the index in a directory.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: the log of changes is damaged.
    """
    state, changes = read_log(Path(path), verify=False)
    if not changes:
        return state.manifest
    return hashlib.sha256(f"{state.manifest} {state.sequence}".encode()).hexdigest()
