"""Bad records that a job left out: kept in a file beside its output, with what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfde.errors import DataError, shorten
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines, write_json_lines

# The tag of such records beside the main output of a step.
BAD = "bad"

DeadLetter = dict[str, Any]


class DeadLetters:
    """Collects what a reader skips.

    Args:
        skip_bad: Whether bad records are skipped; else the first one is raised.

    Attributes:
        intake: For the reader.
        letters: `{"file", "line", "kind", "rule", "received", "count"}` of each.
    """

    def __init__(self, *, skip_bad: bool) -> None:
        self.letters: list[DeadLetter] = []
        self.intake = Intake(skip_bad=skip_bad, report=self._add)

    def _add(self, error: DataError, kind: str, count: int) -> None:
        self.letters.append(
            {
                "file": str(error.path),
                "line": error.line,
                "kind": kind,
                "rule": error.rule,
                "received": None if error.value is None else shorten(error.value, 1000),
                "count": count,
            }
        )


def dead_letter_file(output: str | Path) -> Path:
    """Returns where the bad records of a job stand: `OUTPUT.skipped.jsonl`."""
    output = Path(output)
    return output.with_name(f"{output.name}.skipped.jsonl")


def write_dead_letters(output: str | Path, letters: Iterable[DeadLetter]) -> None:
    """Writes the bad records of a job, by file and line; without any there is no file."""
    path = dead_letter_file(output)
    ordered = sorted(letters, key=lambda letter: (letter["file"], letter["line"] or 0))
    if ordered:
        write_json_lines(path, ordered)
    else:
        path.unlink(missing_ok=True)


def count_dead_letters(output: str | Path) -> dict[str, int]:
    """Returns how many bad records of each kind a job left out."""
    counts: Counter[str] = Counter()
    path = dead_letter_file(output)
    if path.is_file():
        for _, letter in read_json_lines(path):
            counts[letter["kind"]] += letter["count"]
    return dict(counts)
