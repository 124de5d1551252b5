"""A copy of an index directory, of one moment, while it is searched and changed."""

from __future__ import annotations

from pathlib import Path

from tfde.errors import require
from tfde.retrieval.index_directory import copy_index
from tfde.retrieval.live.base_indexes import generation_directory, read_log
from tfde.retrieval.live.change_log import FILE, ChangeLog
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.live.status import LiveStatus
from tfde.storage.atomic import atomic_directory, refuse_existing


def back_up_index(path: str | Path, output: str | Path) -> LiveStatus:
    """Copies an index with all changes that were acknowledged before, and reads the copy whole.

    The copy is an index directory: it is put in the place of a lost one as it is.

    Args:
        path: The index directory; another process may change it.
        output: A new directory.

    Returns:
        The sizes of the copy.

    Raises:
        FileNotFoundError: no index there.
        ConfigError: `output` is not empty, or inside of the index.
        CorruptError: a file is missing or differs.
        OSError: the copy cannot be written.
    """
    path, output = Path(path), Path(output)
    inside = output.resolve().is_relative_to(path.resolve())
    require(not inside, "output", f"a directory outside of the index, {path}", str(output))
    refuse_existing(output, overwrite=False)
    while True:
        base = read_log(path, verify=False)[0][:2]
        try:
            with atomic_directory(output) as copy:
                _copy(path, copy)
                with LiveIndex.open(copy) as index:
                    return index.status()
        except Exception:
            # Another process may have put the next generation in its place meanwhile.
            if read_log(path, verify=False)[0][:2] == base:
                raise


def _copy(path: Path, copy: Path) -> None:
    if (path / FILE).is_file():
        log = ChangeLog(path / FILE, write=False)
        try:
            log.copy_to(copy / FILE)
        finally:
            log.close()
    generation = read_log(copy, verify=False)[0].generation if (copy / FILE).is_file() else 1
    source, target = (generation_directory(each, generation) for each in (path, copy))
    target.mkdir(parents=True, exist_ok=True)
    copy_index(source, target)
