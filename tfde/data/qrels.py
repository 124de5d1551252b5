"""Judgements: BEIR's TSV with the header `query-id corpus-id score`, and TREC's four columns."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Container, Iterator
from pathlib import Path

from tfde.errors import DataError
from tfde.storage.compressed import open_writer, read_lines
from tfde.storage.intake import Intake
from tfde.types import Qrel, Qrels

_QUOTE = '"'
HEADER = ("query-id", "corpus-id", "score")
# trec_eval's code takes eight bytes for each step from 0 to the highest score.
MAX_SCORE = 1_000_000


def read_qrels(path: str | Path, *, query_ids: Container[str] | None = None) -> Qrels:
    """Returns `{query_id: {doc_id: relevance}}`.

    Args:
        path: The file, plain or packed.
        query_ids: The known queries; `None` does not check.

    Raises:
        DataError: as `stream_qrels`; or a judgement that comes twice, an unknown query.
    """
    qrels: Qrels = {}
    intake = Intake()
    for query_id, doc_id, relevance in stream_qrels(path, intake):
        if query_ids is not None and query_id not in query_ids:
            rule = "query-id must be an id of the queries file."
            raise DataError(path, intake.line, rule, query_id)
        judged = qrels.setdefault(query_id, {})
        if doc_id in judged:
            rule = "a query and document must be judged once."
            raise DataError(path, intake.line, rule, f"{query_id} {doc_id}")
        judged[doc_id] = relevance
    return qrels


def with_relevant(qrels: Qrels) -> Qrels:
    """Returns the judgements of the queries of which a document is relevant."""
    return {query: judged for query, judged in qrels.items() if max(judged.values(), default=0) > 0}


def stream_qrels(path: str | Path, intake: Intake) -> Iterator[Qrel]:
    """Yields the judgements in file order.

    Raises:
        DataError: no or another header, not three columns, an id that is empty or holds white
            space, a score that is no integer.
    """
    seen_header = False
    for line, text in read_lines(path, intake):
        if seen_header:
            qrel = intake.take(_qrel, path, line, text)
            if qrel is not None:
                yield qrel
        elif tuple(_columns(text)) == HEADER:
            seen_header = True
        else:
            rule = f"the header must be {' '.join(HEADER)}, tab-separated."
            raise DataError(path, line, rule, text)
    if not seen_header:
        raise DataError(path, None, f"must begin with the header {' '.join(HEADER)}; it is empty.")


def _qrel(path: str | Path, line: int, text: str) -> Qrel:
    columns = _columns(text)
    if len(columns) != 3:
        raise DataError(
            path, line, "must have 3 tab-separated columns, query-id corpus-id score.", text
        )
    query_id, doc_id, score = columns
    for name, value in (("query-id", query_id), ("corpus-id", doc_id)):
        if value.split() != [value]:
            raise DataError(path, line, f"{name} must be an id without white space.", value)
    return Qrel(query_id, doc_id, _relevance(path, line, "score", score))


def _columns(text: str) -> list[str]:
    """Returns the cells of a line; BEIR quotes, as CSV does, an id that holds a quote."""
    cells = []
    if _QUOTE in text:
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader([text], delimiter="\t"))
    return cells if len(cells) == len(HEADER) else text.split("\t")


def qrel_line(query_id: str, doc_id: str, relevance: int) -> str:
    """Returns a judgement as BEIR writes it, without the end of its line."""
    return f"{_quoted(query_id)}\t{_quoted(doc_id)}\t{relevance}"


def _quoted(name: str) -> str:
    twice = name.replace(_QUOTE, 2 * _QUOTE)
    return f"{_QUOTE}{twice}{_QUOTE}" if name.startswith(_QUOTE) else name


def _relevance(path: str | Path, line: int, name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or abs(int(text)) > MAX_SCORE:
        rule = f"{name} must be an integer from -{MAX_SCORE} to {MAX_SCORE}."
        raise DataError(path, line, rule, text)
    return int(text)


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Writes the judgements atomically, in the order given."""
    with open_writer(path) as file:
        file.write(("\t".join(HEADER) + "\n").encode())
        for query_id, judged in qrels.items():
            for doc_id, relevance in judged.items():
                file.write(f"{qrel_line(query_id, doc_id, relevance)}\n".encode())


def read_trec_qrels(path: Path, intake: Intake) -> Iterator[Qrel]:
    """Yields the judgements in file order.

    Raises:
        DataError: not four columns, or a relevance that is no integer.
    """
    for line, text in read_lines(path, intake):
        columns = text.split()
        if len(columns) != 4:
            rule = "a judgement has four columns: query-id iteration doc-id relevance."
            intake.bad(DataError(path, line, rule, text))
            continue
        query_id, _, doc_id, relevance = columns
        try:
            found = _relevance(path, line, "the relevance (column 4)", relevance)
        except DataError as error:
            intake.bad(error)
        else:
            yield Qrel(query_id, doc_id, found)
