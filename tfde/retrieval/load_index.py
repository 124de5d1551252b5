"""Opening an index directory of any kind."""

from __future__ import annotations

from pathlib import Path

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.files import read_json
from tfde.retrieval.index_directory import MANIFEST
from tfde.retrieval.scann_index import ScannIndex


def load_index(path: str | Path, *, verify: bool = True) -> ExactIndex | ScannIndex:
    """Returns the index in a directory.

    Args:
        path: What `save` wrote.
        verify: Compare checksums (reads every file once), not only sizes.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: a file is missing or differs.
    """
    manifest = Path(path) / MANIFEST
    exact = manifest.is_file() and read_json(manifest).get("kind") == "exact"
    return (ExactIndex if exact else ScannIndex).load(path, verify=verify)
