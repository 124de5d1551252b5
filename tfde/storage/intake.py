"""Where a reader stands, and what becomes of a record that breaks a rule."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from tfde.errors import DataError

logger = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Taken = TypeVar("Taken")


_MOST_TOLD = 10  # of one kind; the others are counted


class Intake:
    """What a chain of readers and a writer share about the file that is being read.

    Readers are generators, so whoever gets a record finds here the line it came from.

    Args:
        skip_bad: Whether a bad record is counted and named in the log instead of raised.
        report: Is told of each that is skipped: what is wrong with it, of which kind it is, and
            how many there are of it.

    Attributes:
        path: The file that is being read; `None` before the first.
        line: 1-based line in it; `None` where the format has no lines.
        skipped: How many bad records were left out.
        kinds: The same by kind, where the reader tells kinds apart.
        left_out: How many records were left out that are good, but nothing for this reader.
        stopped_by: What was raised by a bad record that `skip_bad` would have left out.
        garbled: How many texts are UTF-8 that somebody read as Latin letters (see `look_at`).
        first_garbled: The first of them.
    """

    def __init__(
        self,
        *,
        skip_bad: bool = False,
        report: Callable[[DataError, str, int], object] = lambda error, kind, count: None,
    ) -> None:
        self.skip_bad = skip_bad
        self._report = report
        self.skipped = 0
        self.kinds: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.path: Path | None = None
        self.line: int | None = None
        self.stopped_by: DataError | None = None
        self._told: Counter[str] = Counter()
        self.garbled = 0
        self.first_garbled = ""

    def at(self, path: str | Path, line: int | None = None) -> None:
        """Notes where the reader stands."""
        self.path = path if isinstance(path, Path) else Path(path)
        self.line = line

    def bad(self, error: DataError, kind: str = "bad record", count: int = 1) -> None:
        """Raises `error`, or counts and names it where bad records are to be skipped.

        Args:
            error: What is wrong with the first of them.
            kind: A word or two for the count.
            count: How many records.
        """
        if not self.skip_bad:
            self.stopped_by = error
            raise error
        self.skipped += count
        self.kinds[kind] += count
        self._told[kind] += 1
        if self._told[kind] <= _MOST_TOLD:
            logger.warning("skipped: %s", error)
        elif self._told[kind] == _MOST_TOLD + 1:
            logger.warning("skipped: more such, which are counted and not named (%s)", kind)
        self._report(error, kind, count)

    def leave_out(self, kind: str, count: int = 1) -> None:
        """Counts records that are good, but nothing for this reader."""
        if count:
            self.left_out[kind] += count

    def look_at(self, text: str) -> None:
        """Counts a text that is garbled: its letters as Windows' or Latin-1's bytes are UTF-8."""
        if not text.isascii() and any(_is_utf8(text, read_as) for read_as in ("cp1252", "latin-1")):
            self.garbled += 1
            self.first_garbled = self.first_garbled or text

    def take(
        self,
        make: Callable[Parameters, Taken],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Taken | None:
        """Returns `make(...)`, or `None` where that failed and the record was skipped."""
        try:
            return make(*args, **kwargs)
        except DataError as error:
            self.bad(error)
            return None


def _is_utf8(text: str, read_as: str) -> bool:
    try:
        text.encode(read_as).decode("utf-8")
    except UnicodeError:
        return False
    return True
