"""An index directory, whether it was changed since it was built or not."""

from __future__ import annotations

from pathlib import Path

from tfde.retrieval.index import Index
from tfde.retrieval.live.base_indexes import place_of, read_files
from tfde.retrieval.live.live_index import LiveIndex


def load_index(path: str | Path, *, verify: bool = True) -> Index | LiveIndex:
    """Returns the index in a directory: as it is now, where it was changed since it was built.

    Args:
        path: What `save` wrote.
        verify: Compare checksums (reads every file once), not only sizes.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: a file is missing or differs.
    """
    path = Path(path)
    place = place_of(path)
    files = read_files(path, verify=verify)
    return LiveIndex(path, files, place) if files.changes else files.base.index
