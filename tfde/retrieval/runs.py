"""Runs in TREC's six columns: query id, Q0, document id, rank, score, tag."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tfde.argument_types import typed
from tfde.data.ranking import ranking
from tfde.errors import DataError, require
from tfde.storage.atomic import refuse_unwritable
from tfde.storage.compressed import open_writer, read_lines
from tfde.storage.files import check_id
from tfde.storage.intake import Intake
from tfde.types import Run


class RunLine(NamedTuple):
    """A line of a run: its number in the file, from 1, and the columns that count."""

    number: int
    query_id: str
    doc_id: str
    score: float


@typed
def read_run(path: str | Path) -> Run:
    """Returns the run in a file, plain or packed; as for trec_eval, scores decide and not ranks.

    Raises:
        DataError: not six columns, a rank or score that is no number, or a document that stands
            twice for a query.
    """
    run: Run = {}
    for line in stream_run(path):
        results = run.setdefault(line.query_id, {})
        if line.doc_id in results:
            raise document_twice(path, line)
        results[line.doc_id] = line.score
    return run


def stream_run(path: str | Path, intake: Intake | None = None) -> Iterator[RunLine]:
    """Yields the lines of a run, without a look at documents that stand twice.

    Args:
        path: The file, plain or packed.
        intake: Takes bad lines; `None` raises the first.

    Raises:
        DataError: not six columns, or a rank or score that is no number.
    """
    intake = intake or Intake()
    for number, text in read_lines(path, intake):
        line = intake.take(_run_line, path, number, text)
        if line is not None:
            yield line


def document_twice(path: str | Path, line: RunLine) -> DataError:
    """Returns what to raise for a document that a query has already."""
    rule = f"query {line.query_id} must name a document once."
    return DataError(path, line.number, rule, line.doc_id)


def _run_line(path: str | Path, number: int, text: str) -> RunLine:
    columns = text.split()
    if len(columns) != 6:
        rule = "a run has six columns: query-id Q0 doc-id rank score tag."
        raise DataError(path, number, rule, text)
    query_id, _, doc_id, rank, score, _ = columns
    if not rank.lstrip("-").isdecimal():
        raise DataError(path, number, "the rank (column 4) must be an integer.", rank)
    return RunLine(number, query_id, doc_id, _score(path, number, score))


def _score(path: str | Path, line: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(path, line, "the score (column 5) must be a finite number.", text)
    return score


@typed
def write_run(path: str | Path, run: Run, *, tag: str = "tfde") -> None:
    """Writes a run, atomically: ranks from 1, scores descending, ties in trec_eval's order.

    Scores are written so that reading gives the same floats again.

    Args:
        path: The file; packed if its name ends in `.gz` or `.zst`.
        run: Query -> document -> score.
        tag: Name of the system, without white space.

    Raises:
        ConfigError: a tag with white space.
        DataError: an id with white space, or a score that is not finite.
    """
    check_tag(tag)
    with open_writer(path) as file:
        file.writelines(run_lines(path, run, tag=tag))


def check_output(path: str | Path, tag: str, *, given: Iterable[str | Path] = ()) -> None:
    """Refuses before long work what `write_run` cannot write.

    Args:
        path: The file.
        tag: Name of the system.
        given: Files that are read, and not to be written over.

    Raises:
        ConfigError: `path` cannot be a file, lies in no directory or is one of `given`; a tag with
            white space.
    """
    check_tag(tag)
    is_given = Path(path).resolve() in {Path(run).resolve() for run in given}
    require(not is_given, "output", "another file than those that are read", str(path))
    refuse_unwritable(path)
    rule = "in a directory that exists"
    require(Path(path).absolute().parent.is_dir(), "output", rule, str(path))


def check_tag(tag: str) -> None:
    """Refuses a name of a system that a run cannot hold.

    Raises:
        ConfigError: a tag with white space.
    """
    require(tag.split() == [tag], "tag", "text without white space", tag)


def run_lines(path: str | Path, run: Run, *, tag: str) -> Iterator[bytes]:
    """Yields the lines of a run, as `write_run` writes them.

    Args:
        path: The file, for errors.
        run: As `write_run`.
        tag: As `write_run`.

    Raises:
        DataError: as `write_run`.
    """
    line = 0
    for query_id, results in run.items():
        check_id(query_id, path, line + 1, "query id")
        for rank, doc_id in enumerate(ranking(results), start=1):
            line += 1
            check_id(doc_id, path, line)
            score = results[doc_id]
            if not math.isfinite(score):
                raise DataError(path, line, "a score must be finite.", score)
            yield f"{query_id} Q0 {doc_id} {rank} {float(score)!r} {tag}\n".encode()
