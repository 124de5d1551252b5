"""A JSON file that is one long array, element by element."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfde.errors import DataError
from tfde.storage.compressed import (
    COMPRESSION_ERRORS,
    MAX_LINE_BYTES,
    compression_error,
    open_binary,
)
from tfde.storage.intake import Intake
from tfde.storage.json_file import json_fault

_CHUNK_BYTES = 1 << 20
_SPACE = " \t\r\n"
# The longest token that a chunk's end can cut so that the fault is reported at its start:
# "-Infinity", or "\\uD83D\\uDE00".
_LONGEST_TOKEN = 16


def read_json_array(path: str | Path, intake: Intake) -> Iterator[tuple[int, Any]]:
    """Yields the line on which an element starts (from 1) and the element.

    Memory holds one element and what is read ahead. A fault of the JSON itself ends the reading
    even where bad records are skipped, for nobody knows where the next element starts.

    Raises:
        DataError: not UTF-8, not JSON, not an array, or cut; the packed stream is damaged.
    """
    intake.at(path, 1)
    text = _Text(Path(path))
    if text.next_character() != "[":
        raise text.fault("the file must be a JSON array", text.rest()[:80])
    text.skip(1)
    if text.next_character() == "]":
        text.skip(1)
    else:
        while True:
            intake.at(path, text.line)
            yield text.line, text.element()
            separator = text.next_character()
            text.skip(1)
            if separator == "]":
                break
            if separator != ",":
                raise text.fault("must be JSON (',' or ']' must follow an element)", separator)
            text.next_character()
    if text.next_character():
        raise text.fault("nothing must follow the array", text.rest()[:80])


def begins_array(path: Path) -> bool:
    """Returns whether the first character of a file that is no white space is `[`.

    Raises:
        DataError: as `read_json_array`.
    """
    return _Text(path).next_character() == "["


class _Text:
    """The text of a file, from the place that was reached, and the line of that place."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 1
        self._chunks = _chunks(path)
        self._buffer, self._start = "", 0
        self._decoder = json.JSONDecoder()

    def rest(self) -> str:
        return self._buffer[self._start :]

    def next_character(self) -> str:
        """Skips white space; returns the character after it, or "" at the end of the file."""
        while True:
            while self._start < len(self._buffer):
                if self._buffer[self._start] not in _SPACE:
                    return self._buffer[self._start]
                self.skip(1)
            if not self._more(1):
                return ""

    def skip(self, count: int) -> None:
        stop = self._start + count
        self.line += self._buffer.count("\n", self._start, stop)
        self._start = stop

    def element(self) -> Any:
        """Reads the element that starts here."""
        wanted = 1
        while True:
            try:
                value, stop = self._decoder.raw_decode(self._buffer, self._start)
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._buffer) - _LONGEST_TOKEN
                if len(self._buffer) - self._start > MAX_LINE_BYTES:
                    rule = f"an element must be at most {MAX_LINE_BYTES >> 20} MiB"
                    raise self.fault(rule, self.rest()[:80]) from error
                if (cut or error.msg.startswith("Unterminated")) and self._more(wanted):
                    wanted *= 2  # else a long element is parsed once for each chunk of it
                    continue
                line = self.line + self._buffer.count("\n", self._start, error.pos)
                rule = f"must be JSON ({json_fault(error)})."
                raise DataError(
                    self.path, line, rule, self._buffer[error.pos :][:80] or "the end of the file"
                ) from error
            except (ValueError, RecursionError) as error:
                raise self.fault(f"must be JSON ({json_fault(error)})", None) from error
            self.skip(stop - self._start)
            return value

    def fault(self, rule: str, value: object) -> DataError:
        return DataError(self.path, self.line, f"{rule}.", value)

    def _more(self, chunks: int) -> bool:
        """Reads on; returns whether there was anything."""
        pieces = list(itertools.islice(self._chunks, chunks))
        if not pieces:
            return False
        self._buffer = self._buffer[self._start :] + "".join(pieces)
        self._start = 0
        return True


def _chunks(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    place = 0
    with open_binary(path) as file:
        while True:
            try:
                chunk = file.read(_CHUNK_BYTES)
            except COMPRESSION_ERRORS as error:
                raise compression_error(path, None, error) from error
            kept = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                byte = place - kept + error.start
                raise DataError(path, None, f"must be UTF-8 (byte {byte}).") from error
            place += len(chunk)
            if text:
                yield text
            if not chunk:
                return
