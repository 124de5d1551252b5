"""Training pairs from what is in memory: tuples, mappings, frames."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tfde.data.formats.columns import describe_columns, records_of_row
from tfde.data.formats.csv_rows import json_cell
from tfde.data.formats.records import Judgement, Source, TrainingPair
from tfde.errors import ConfigError, DataError, shorten
from tfde.types import Document, Pair, Query

logger = logging.getLogger(__name__)

# What messages call the place.
_PLACE = Path("pairs")


def pairs_of_rows(
    rows: Any, *, columns: Sequence[str] | None = None, limit: int | None = None
) -> Iterator[Pair]:
    """Yields the pairs of rows, and says in the log what was read as what and what was left out.

    Args:
        rows: `tfde.Pair`s; or `(query, document)` and `(query, document, negative, ...)` texts; or
            mappings, or a pandas frame, with columns as `tfde convert` knows them: a row with
            several documents is several pairs, one labelled 0 is none.
        columns: `KIND=NAME` for each column that has another name.
        limit: Take only the first so many pairs; `None` takes all.

    Raises:
        ConfigError: `rows` is none of these, or `columns` in another form.
        DataError: a row breaks a rule; its number, from 1, stands where files have lines.
    """
    yield from islice(_pairs(_rows(rows), columns), limit)


def _pairs(
    rows: Iterator[Pair | Mapping[str, Any]], columns: Sequence[str] | None
) -> Iterator[Pair]:
    first = next(rows, None)
    if isinstance(first, Mapping):
        logger.info("%s: %s", _PLACE, describe_columns(_PLACE, 1, first, columns))
    given_ids: dict[str, str] = {}
    left_out = 0
    for number, row in enumerate(chain([] if first is None else [first], rows), start=1):
        if isinstance(row, Pair):
            yield row
            continue
        records = records_of_row(Source("rows", _PLACE), number, row, columns, given_ids)
        documents = {one.doc_id: one for one in records if isinstance(one, Document)}
        (query,) = (one for one in records if isinstance(one, Query))
        given = next((one.negatives for one in records if isinstance(one, TrainingPair)), ())
        negatives = tuple(documents[doc_id] for doc_id in given)
        for judged in records:
            if isinstance(judged, Judgement) and judged.relevance > 0:
                positive = documents[judged.doc_id]
                yield Pair(query, positive, negatives, (positive.doc_id,))
            left_out += isinstance(judged, Judgement) and judged.relevance <= 0
    if left_out:
        logger.warning("pairs: left out: %s documents labelled 0", f"{left_out:,}")


def _rows(rows: Any) -> Iterator[Pair | Mapping[str, Any]]:
    if hasattr(rows, "itertuples") and hasattr(rows, "columns"):
        names = [str(name) for name in rows.columns]
        plain = rows.astype(object).where(rows.notna(), None)
        for cells in plain.itertuples(index=False, name=None):
            yield dict(zip(names, map(json_cell, cells), strict=True))
        return
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping | bytes):
        raise ConfigError(
            "`path` must be a dataset directory, a pair file, a list of pairs or a frame."
            f" Received: {shorten(rows)}"
        )
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Pair | Mapping):
            yield row
        elif isinstance(row, tuple | list) and len(row) >= 2:
            query, document, *negatives = row
            named = {f"negative_{place}": text for place, text in enumerate(negatives, start=1)}
            yield {"query": query, "document": document, **named}
        else:
            rule = "a pair must be (query, document, negative, ...), a mapping or a tfde.Pair."
            raise DataError(_PLACE, number, rule, row)
