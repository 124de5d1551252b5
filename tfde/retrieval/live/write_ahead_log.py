"""SQLite's write-ahead log, read as a file: whether a whole commit lies behind what is broken.

SQLite reads the log up to the first frame that is not whole, and takes what follows for a commit
that a kill or a power cut left unfinished. Where a byte in the middle was damaged, all later
commits would go without a word. So the log is looked at before SQLite opens it.

Source: https://sqlite.org/fileformat2.html, section 4.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfde.errors import CorruptError

_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # how the checksums read their words
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_LOOKS, _PAUSE_S = 10, 0.02


class Frame(NamedTuple):
    """A page as a commit wrote it.

    Attributes:
        offset: Where it begins in the log, in bytes.
        page: The page's number, from 1.
        ends_commit: Whether it is the last one of its commit.
        is_whole: Whether its checksum agrees with that of the frame before and its content.
        content: The page.
    """

    offset: int
    page: int
    ends_commit: bool
    is_whole: bool
    content: bytes


class _Damage(NamedTuple):
    offset: int
    commits: int  # whole ones behind it
    salts: tuple[int, ...]


def log_file(path: Path) -> Path:
    """Returns the path of the write-ahead log of an SQLite file."""
    return path.with_name(f"{path.name}-wal")


def check_write_ahead_log(path: Path, way_out: str) -> None:
    """Looks whether the log of an SQLite file would be read to its end.

    Args:
        path: The SQLite file; it need not have a log.
        way_out: What to do, for the message.

    Raises:
        CorruptError: a whole commit lies behind a frame that is damaged.
    """
    before: _Damage | None = None
    for _ in range(_LOOKS):
        found = _find_damage(log_file(path))
        if found is None:
            return
        if found == before:
            raise CorruptError(
                f"{log_file(path)}: is damaged at byte {found.offset}, and {found.commits} commits"
                f" behind it are whole; {way_out}"
            )
        # Another process may have been writing there meanwhile.
        before = found
        time.sleep(_PAUSE_S)


def read_frames(path: Path) -> Iterator[Frame]:
    """Yields the frames of a log that belong to its last beginning, whole or not."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return
        magic, _, page_size, _, *salts, first, second = _HEADER.unpack(head)
        order = _MAGIC.get(magic, "<")
        checksum = _checksum(head[:24], order, (0, 0))
        if magic not in _MAGIC or checksum != (first, second):
            page_size, salts = _guessed(file.read(_FRAME.size), page_size)
            file.seek(_HEADER.size)
            checksum = (first, second)
        size = _FRAME.size + page_size
        offset = _HEADER.size
        while len(raw := file.read(size)) == size:
            page, pages, *found, first, second = _FRAME.unpack(raw[: _FRAME.size])
            is_ours = found == salts
            content = raw[_FRAME.size :]
            if is_ours:
                checksum = _checksum(raw[:8] + content, order, checksum)
            yield Frame(offset, page, pages > 0, is_ours and checksum == (first, second), content)
            # Seeded with what is stored, so that one broken frame does not break all others.
            checksum = (first, second)
            offset += size


def _find_damage(path: Path) -> _Damage | None:
    """Returns the first broken place that has a whole commit behind it.

    Whole frames without the end of a commit are of one that was never ended: SQLite writes what is
    larger than its memory before it ends, and the next commit overwrites only the first of it.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, *_, first, second = _HEADER.unpack(head)
    broken: int | None = None
    if magic not in _MAGIC or _checksum(head[:24], _MAGIC[magic], (0, 0)) != (first, second):
        broken = 0
    commits = 0
    for frame in read_frames(path):
        if not frame.is_whole:
            broken = frame.offset if broken is None else broken
        elif broken is not None:
            commits += frame.ends_commit
    return _Damage(broken, commits, tuple(head[16:24])) if broken is not None and commits else None


def _guessed(frame: bytes, page_size: int) -> tuple[int, list[int]]:
    """Returns page size and salts where the header is damaged: ours, and the first frame's."""
    if page_size < 512 or page_size & (page_size - 1) or page_size > 1 << 16:
        page_size = 4096
    return page_size, list(_FRAME.unpack(frame)[2:4]) if len(frame) == _FRAME.size else []


def _checksum(content: bytes, order: str, seed: tuple[int, int]) -> tuple[int, int]:
    first, second = seed
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
