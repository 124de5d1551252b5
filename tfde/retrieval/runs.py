"""Runs in TREC's six columns: query id, Q0, document id, rank, score, tag."""

from __future__ import annotations

import math
from pathlib import Path

from tfde.data.compressed import open_writer, read_lines
from tfde.errors import ConfigError, DataError, shorten
from tfde.retrieval.files import check_id
from tfde.types import Run


def read_run(path: str | Path) -> Run:
    """Returns the run in a file, plain or packed; as for trec_eval, scores decide and not ranks.

    Raises:
        DataError: not six columns, a rank or score that is no number, or a document that stands
            twice for a query.
    """
    run: Run = {}
    for line, text in read_lines(path):
        columns = text.split()
        if len(columns) != 6:
            raise DataError(
                path, line, "a run has six columns: query-id Q0 doc-id rank score tag.", text
            )
        query_id, _, doc_id, rank, score, _ = columns
        if not rank.lstrip("-").isdecimal():
            raise DataError(path, line, "the rank (column 4) must be an integer.", rank)
        results = run.setdefault(query_id, {})
        if doc_id in results:
            raise DataError(path, line, f"query {query_id} must name a document once.", doc_id)
        results[doc_id] = _score(path, line, score)
    return run


def _score(path: str | Path, line: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(path, line, "the score (column 5) must be a finite number.", text)
    return score


def write_run(path: str | Path, run: Run, *, tag: str = "tfde") -> None:
    """Writes a run, atomically: ranks from 1, scores descending, ties in trec_eval's order.

    Scores are written so that reading gives the same floats again.

    Args:
        path: The file; packed if its name ends in `.gz`.
        run: Query -> document -> score.
        tag: Name of the system, without white space.

    Raises:
        ConfigError: a tag with white space.
        DataError: an id with white space, or a score that is not finite.
    """
    if tag.split() != [tag]:
        raise ConfigError(f"`tag` must be text without white space. Received: {shorten(tag)}")
    with open_writer(path) as file:
        line = 0
        for query_id, results in run.items():
            check_id(query_id, path, line + 1, "query id")
            # trec_eval breaks ties by document id, descending; ranks then agree with measures.
            ordered = sorted(results.items(), key=lambda item: item[0], reverse=True)
            ordered.sort(key=lambda item: -item[1])
            for rank, (doc_id, score) in enumerate(ordered, start=1):
                line += 1
                check_id(doc_id, path, line)
                if not math.isfinite(score):
                    raise DataError(path, line, "a score must be finite.", score)
                row = f"{query_id} Q0 {doc_id} {rank} {float(score)!r} {tag}\n"
                file.write(row.encode())
