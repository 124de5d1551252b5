"""Files plain or packed: `.gz` and `.zst` are known by the name, for reading and writing."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from tfde.errors import ConfigError, DataError
from tfde.storage.atomic import atomic_file
from tfde.storage.intake import Intake
from tfde.storage.json_file import refuse_pointer

COMPRESSION_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
SUFFIXES = (".gz", ".zst")

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".zip")
_MAGIC = ((b"\x1f\x8b", "gzip", ".gz"), (b"\x28\xb5\x2f\xfd", "zstd", ".zst"))
_CHUNK_BYTES = 1 << 17
_PACKED_BYTES = 1 << 12  # four bytes of zstd can hold 128 KiB, and come out all at once
# Longer than any document; what is not text, or unpacks for ever, must not fill the memory.
MAX_LINE_BYTES = 1 << 26
MAX_FILE_BYTES = 1 << 30


def open_binary(path: str | Path) -> BinaryIO:
    """Opens a file for reading, unpacked when its name ends in `.gz` or `.zst`.

    Reading from it raises one of `COMPRESSION_ERRORS` where the packed stream is not whole.

    Raises:
        DataError: an archive of files; a packed file under the name of a plain one; a pointer of
            Git LFS.
    """
    path = Path(path)
    refuse_pointer(path)
    if path.name.endswith(_ARCHIVES):
        raise DataError(path, None, "must be one file; unpack the archive first.")
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdReader(path), _CHUNK_BYTES)
    file = open(path, "rb")  # noqa: SIM115  # the caller closes it
    start = file.peek(4)
    for magic, name, suffix in _MAGIC:
        if start.startswith(magic):
            file.close()
            raise DataError(path, None, f"is packed with {name}, so its name must end in {suffix}.")
    return file


def compression_error(path: str | Path, line: int | None, error: Exception) -> DataError:
    """Returns what to raise for one of `COMPRESSION_ERRORS`."""
    name = "zstd" if Path(path).suffix == ".zst" else "gzip"
    return DataError(path, line, f"the {name} stream must be whole ({error}).")


# What other encoding a file is in nobody knows; this is the one that spreadsheets write.
_HINT = "`iconv -f WINDOWS-1252 -t UTF-8` makes a file of Windows so"


def raw_lines(
    path: str | Path,
    intake: Intake | None = None,
    *,
    encoding: str = "utf-8",
    instead: Callable[[DataError], str] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yields line number (from 1) and text of every line, its line end included.

    A byte order mark at the start of the file is left out.

    Args:
        path: The file, plain or packed.
        intake: The place, and what becomes of bad lines.
        encoding: One in which a line feed is the byte 10, such as `utf-8` or `latin-1`.
        instead: Told what is wrong with a bad line, of whose text the error holds what can be
            read, and gives what is yielded in its place; `None`: it is left out.

    Raises:
        DataError: a line is not of that encoding or longer than `MAX_LINE_BYTES`; the packed
            stream is truncated or damaged.
        ConfigError: the file is UTF-16.
    """
    intake = intake or Intake()
    number = 0
    intake.at(path)
    with open_binary(path) as file:
        while True:
            try:
                raw = file.readline(MAX_LINE_BYTES + 1)
                start = raw[:80] if len(raw) > MAX_LINE_BYTES else None
                while start is not None and raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE_BYTES)
            except COMPRESSION_ERRORS as error:
                intake.bad(compression_error(path, number + 1, error))
                return
            if not raw and start is None:
                return
            number += 1
            intake.at(path, number)
            if start is not None:
                rule = f"a line must be at most {MAX_LINE_BYTES >> 20} MiB."
                fault = DataError(path, number, rule, start.decode(encoding, "replace"))
                if instead is None:
                    intake.bad(fault)
                else:
                    yield number, instead(fault)
                continue
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
                if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    how = "`iconv -f UTF-16 -t UTF-8` makes it UTF-8"
                    raise ConfigError(f"{path}: must not be UTF-16; {how}.")
            try:
                line = raw.decode(encoding)
            except UnicodeDecodeError as error:
                place = f"byte {error.start} of the line is not"
                rule = f"must be {encoding.upper()} ({place}); {_HINT}."
                if instead is None:
                    intake.bad(DataError(path, number, rule, raw))
                else:
                    text = raw.decode(encoding, "replace")
                    yield number, instead(DataError(path, number, rule, text))
                continue
            yield number, line


def read_whole(path: str | Path) -> bytes:
    """Returns the content of a file that is read as one piece, unpacked.

    Raises:
        DataError: it is longer than `MAX_FILE_BYTES`; the packed stream is truncated or damaged.
    """
    with open_binary(path) as file:
        try:
            content = file.read(MAX_FILE_BYTES + 1)
        except COMPRESSION_ERRORS as error:
            raise compression_error(path, None, error) from error
    if len(content) > MAX_FILE_BYTES:
        rule = f"a file of this format must be at most {MAX_FILE_BYTES >> 20} MiB, unpacked."
        raise DataError(path, None, rule, content[:80])
    return content


def read_lines(
    path: str | Path, intake: Intake | None = None, *, encoding: str = "utf-8"
) -> Iterator[tuple[int, str]]:
    """Yields line number (from 1) and text, without the line end, of every line that is not blank.

    Raises:
        DataError: as `raw_lines`.
    """
    for number, line in raw_lines(path, intake, encoding=encoding):
        if line.strip():
            yield number, line.rstrip("\r\n")


@contextlib.contextmanager
def open_writer(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file for atomic writing, packed when its name ends in `.gz` or `.zst`.

    Equal content gives equal bytes: the header holds neither time nor name.
    """
    suffix = Path(path).suffix
    with atomic_file(path) as temporary, open(temporary, "wb") as raw:
        if suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        elif suffix == ".zst":
            with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as writer:
                # By itself it has no `writelines`, and says so at the end of long work.
                whole = io.BufferedWriter(cast(io.RawIOBase, writer))
                try:
                    yield cast(BinaryIO, whole)
                finally:
                    whole.detach()
        else:
            yield raw


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    """Writes one text a line, atomically; packed by its name. Returns the number of lines."""
    count = 0
    with open_writer(path) as file:
        for line in lines:
            file.write(line.encode() + b"\n")
            count += 1
    return count


class _ZstdReader(io.RawIOBase):
    """The unpacked bytes of a zstd file, of all its frames.

    zstandard's own reader ends silently where a file is cut; this one raises EOFError.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  # closed with the object
        # Windows up to the format's limit; `zstd --long=31` makes them.
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked and self._unpack():
            pass
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def _unpack(self) -> bool:
        """Unpacks the next piece; returns whether there was one."""
        packed = self._packed or self._file.read(_PACKED_BYTES)
        if not packed:
            if self._frame is not None:
                raise EOFError("the file ends inside a frame")
            return False
        if self._frame is None:
            self._frame = self._unpacker.decompressobj()
        self._unpacked = memoryview(self._frame.decompress(packed))
        self._packed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True
