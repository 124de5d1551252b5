"""Judgements in BEIR's TSV: header `query-id corpus-id score`, then one judgement a line."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from tfde.data.json_lines import open_writer, read_lines
from tfde.errors import DataError
from tfde.types import Qrels

HEADER = ("query-id", "corpus-id", "score")


def read_qrels(
    path: str | Path,
    *,
    query_ids: Container[str] | None = None,
    doc_ids: Container[str] | None = None,
) -> Qrels:
    """Returns `{query_id: {doc_id: relevance}}`.

    Args:
        path: The file, plain or `.gz`.
        query_ids: The known queries; `None` does not check.
        doc_ids: The known documents; `None` does not check.

    Raises:
        DataError: no or another header, not three columns, an id that is empty or holds white
            space, a score that is no integer, a judgement that comes twice, an unknown id.
    """
    qrels: Qrels = {}
    seen_header = False
    for line, text in read_lines(path):
        columns = text.split("\t")
        if not seen_header:
            if tuple(columns) != HEADER:
                raise DataError(
                    path, line, f"the header must be {' '.join(HEADER)}, tab-separated.", text
                )
            seen_header = True
            continue
        if len(columns) != 3:
            raise DataError(
                path, line, "must have 3 tab-separated columns, query-id corpus-id score.", text
            )
        query_id, doc_id, score = columns
        for name, value, known in (
            ("query-id", query_id, query_ids),
            ("corpus-id", doc_id, doc_ids),
        ):
            if value.split() != [value]:
                raise DataError(path, line, f"{name} must be an id without white space.", value)
            if known is not None and value not in known:
                where = "queries" if name == "query-id" else "corpus"
                raise DataError(path, line, f"{name} must be an id of the {where} file.", value)
        judged = qrels.setdefault(query_id, {})
        if doc_id in judged:
            raise DataError(
                path, line, "a query and document must be judged once.", f"{query_id} {doc_id}"
            )
        try:
            judged[doc_id] = int(score)
        except ValueError as error:
            raise DataError(path, line, "score must be an integer.", score) from error
    if not seen_header:
        raise DataError(path, None, f"must begin with the header {' '.join(HEADER)}; it is empty.")
    return qrels


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Writes the judgements atomically, in the order given."""
    with open_writer(path) as file:
        file.write(("\t".join(HEADER) + "\n").encode())
        for query_id, judged in qrels.items():
            for doc_id, relevance in judged.items():
                file.write(f"{query_id}\t{doc_id}\t{relevance}\n".encode())
