"""TREC's judgements: query id, iteration, document id, relevance, with white space between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tfde.errors import DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake
from tfde.types import Qrel


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
            yield Qrel(query_id, doc_id, int(relevance))
        except ValueError:
            rule = "the relevance (column 4) must be an integer."
            intake.bad(DataError(path, line, rule, relevance))
