"""Training pairs from a dataset directory or from a file of pairs."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.columns import (
    Twins,
    column_names,
    describe_columns,
    documents_by_text,
    is_column_of_table,
    records_of_row,
)
from tfde.data.formats.csv_rows import ending, json_cell, read_rows
from tfde.data.formats.json_array import begins_array
from tfde.data.formats.records import Judgement, Source, TrainingPair
from tfde.data.frames import rows_in_memory
from tfde.data.ids import id_of_text
from tfde.data.metadata import document_texts
from tfde.data.pairs.table import PairTable
from tfde.errors import ConfigError, DataError, require, shorten
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, read_json_lines, string_field, write_json_lines
from tfde.types import CONTEXT, Document, Pair, Query

logger = logging.getLogger(__name__)
NO_LABELS = (
    "pairs have no labels (leave out those that do not match, or train a tfde.CrossEncoder or"
    " tfde.Matcher on labels)"
)
# What messages call the place.
_PLACE = Path("pairs")
_NO_PAIRS = (Query, Document)  # tuples themselves
# No pair file ends in these; a spreadsheet is refused where tables are read.
_TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".xlsx", ".xls", ".ods")


def read_pairs(
    path: str | Path | DatasetDirectory | Iterable[Any],
    *,
    split: str = "train",
    dataset: str | Path | None = None,
    limit: int | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    argument: str = "path",
) -> PairTable:
    """Returns the training pairs of a dataset directory, of a pair file, or of what is in memory.

    A dataset directory gives one pair for each judgement above 0 of the split. A pair file is
    JSON Lines, `{"query": text, "positive": DOCUMENT, "negatives": [DOCUMENT, ...]}`, where
    `negatives` may be absent and DOCUMENT is `{"title", "text"}` (and perhaps `context`), or a
    string: a text, or with `dataset` the id of one of its documents. A text without id gets one
    from its hash. `query_id` tells queries apart that have one text. `cross_scores`, `{"positive":
    NUMBER, "negatives": [NUMBER, ...]}`, are a teacher's; other fields, such as `scores`, are not
    read.

    Args:
        path: The dataset directory, or the pair file (`.jsonl` or `.jsonl.gz`); or a table, a file
            as `tfde.data.formats.columns.read` knows it; or what `pairs_of_rows` takes: a list of
            pairs, a frame.
        split: The split of the dataset directory; all else has none, but for `train`.
        dataset: The dataset directory whose documents a pair file names by id.
        limit: Take only the first so many pairs; `None` takes all. Lines of a pair file below it
            are not read, so what they know of the same queries is not known.
        columns: As in `pairs_of_rows`, for a table and for what is in memory.
        argument: What messages call `path`, of what is in memory.

    Raises:
        ConfigError: `path` does not exist; `dataset` beside a dataset directory or a table, or none
            for a file that was made with ids; `columns` beside a dataset directory; `split` beside
            anything else; no such split.
        DataError: a record breaks a rule, a judgement or pair names an unknown id, or there is
            no pair at all.
    """
    require(limit is None or limit >= 1, "limit", "at least 1", limit)
    if isinstance(path, DatasetDirectory):
        path = path.path
    if not isinstance(path, str | Path) or Path(path).is_file():
        rule = "left out where pairs come from no dataset directory, which alone has splits"
        require(split == "train", "split", rule, split)
    if not isinstance(path, str | Path):
        require(dataset is None, "dataset", "left out where pairs are in memory", dataset)
        table = PairTable(pairs_of_rows(path, columns=columns, limit=limit, argument=argument))
        if not len(table):
            raise ConfigError("there must be at least one pair. Received: none")
        return table
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: a dataset directory, a pair file or a table must stand here.")
    if path.is_dir():
        require(columns is None, "columns", "left out beside a dataset directory", columns)
        if dataset is not None:
            raise ConfigError(
                f"`dataset` goes with a pair file, but {path} is a dataset directory."
                f" Received: {str(dataset)!r}"
            )
        pairs = _pairs_of_dataset(DatasetDirectory(path), split, limit)
        rule = f"split {split!r} must have at least one judgement above 0."
    elif columns is not None or (dataset is None and _is_table(path)) or _is_named_table(path):
        require(dataset is None, "dataset", "left out beside a table, which has texts", dataset)
        pairs = islice(_pairs_of_table(path, columns), limit)
        rule = "must hold at least one pair."
    else:
        if dataset is None and _names_ids(path):
            raise ConfigError(f"{path} names documents by their ids: `dataset` must name theirs.")
        pairs = _pairs_of_file(path, None if dataset is None else DatasetDirectory(dataset), limit)
        rule = "must hold at least one pair."
    table = PairTable(pairs)
    if not len(table):
        raise DataError(path, None, rule)
    return table


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> int:
    """Writes a pair file with titles and texts, atomically; returns the number of pairs."""
    return write_json_lines(
        path,
        (
            {
                "query": pair.query.text,
                "positive": document_texts(pair.positive),
                "negatives": list(map(document_texts, pair.negatives)),
            }
            for pair in pairs
        ),
    )


def _is_named_table(path: Path) -> bool:
    return ending(path) in _TABLES or (ending(path) == ".json" and begins_array(path))


def _is_table(path: Path) -> bool:
    """Returns whether JSON Lines are a table of texts, and no pair file."""
    with contextlib.suppress(DataError):  # which whoever reads it will tell
        number, first = next(iter(read_json_lines(path)), (1, {}))
        if not {"query", "positive"} <= first.keys():
            return bool(describe_columns(path, number, first, None))
        return isinstance(first["positive"], str) and any(
            is_column_of_table(name, value) for name, value in first.items()
        )
    return False


def _names_ids(path: Path) -> bool:
    """Returns whether tfde made a pair file with ids: by the record beside it, or where it lies."""
    record = path.with_name(f"{path.name}.json")
    if record.is_file():
        with contextlib.suppress(ValueError, TypeError):  # somebody else's file may be anything
            settings = dict(dict(json.loads(record.read_bytes())).get("settings", ()))
            return settings.get("documents") == "ids" or settings.get("form") == "pairs"
    return path.parent.name == "pairs" and any(path.parent.parent.glob("corpus.jsonl*"))


def _pairs_of_table(
    path: Path, columns: Sequence[str] | Mapping[str, str] | None
) -> Iterator[Pair]:
    intake = Intake()
    twins = documents_by_text([path], column_names(columns))
    rows = ((intake.line, row) for row in read_rows(path, intake))
    yield from _pairs(rows, columns, path, twins)


def _pairs_of_dataset(dataset: DatasetDirectory, split: str, limit: int | None) -> Iterator[Pair]:
    positives = dataset.relevant(split)
    wanted = [(query_id, doc_id) for query_id, ids in positives.items() for doc_id in ids][:limit]
    queries = {query.query_id: query for query in dataset.queries(split)}
    store = dataset.document_store({doc_id for _, doc_id in wanted})
    for query_id, doc_id in wanted:
        yield Pair(queries[query_id], store[doc_id], (), positives[query_id])


class _Line(NamedTuple):
    number: int
    query: Query
    positive: Document | str
    negatives: list[Document | str]
    margins: tuple[float, ...]


def _pairs_of_file(
    path: Path, dataset: DatasetDirectory | None, limit: int | None
) -> Iterator[Pair]:
    lines: Iterable[_Line] = itertools.islice(_lines(path, dataset is not None), limit)
    store: dict[str, Document] = {}
    if dataset is not None:
        lines = list(lines)
        store = dataset.document_store(
            {
                document
                for line in lines
                for document in (line.positive, *line.negatives)
                if isinstance(document, str)
            }
        )

    def document(line: _Line, value: Document | str) -> Document:
        if isinstance(value, Document):
            return value
        if value not in store:
            where = "" if dataset is None else str(dataset.path)
            raise DataError(path, line.number, f"must name documents of {where}.", value)
        return store[value]

    for line in lines:
        positive = document(line, line.positive)
        negatives = tuple(document(line, value) for value in line.negatives)
        yield Pair(line.query, positive, negatives, (positive.doc_id,), line.margins)


def _lines(path: Path, strings_are_ids: bool) -> Iterator[_Line]:
    for number, record in read_json_lines(path):
        text = string_field(path, number, record, "query")
        query_id = id_of_text(text)
        if record.get("query_id") is not None:
            query_id = id_field(path, number, record, "query_id")
        if "positive" not in record:
            raise DataError(path, number, "field 'positive' is missing.", record)
        positive = _document(path, number, record["positive"], "positive", strings_are_ids)
        negatives = record.get("negatives") or []
        if not isinstance(negatives, list):
            raise DataError(path, number, "field 'negatives' must be a list.", negatives)
        yield _Line(
            number,
            Query(query_id, text),
            positive,
            [_document(path, number, n, "negatives", strings_are_ids) for n in negatives],
            _margins(path, number, record.get("cross_scores"), len(negatives)),
        )


def _margins(path: Path, line: int, scores: Any, count: int) -> tuple[float, ...]:
    """How much more a teacher gives to the positive than to each negative; () without scores."""
    if scores is None:
        return ()
    of_positive = scores.get("positive") if isinstance(scores, Mapping) else None
    of_negatives = scores.get("negatives") if isinstance(scores, Mapping) else None
    numbers = [of_positive, *of_negatives] if isinstance(of_negatives, list) else []
    whole = len(numbers) == count + 1 and all(
        isinstance(x, int | float) and math.isfinite(x) for x in numbers
    )
    if not whole:
        rule = f"field 'cross_scores' must have a number for the positive and {count} for negatives"
        raise DataError(path, line, f"{rule}.", scores)
    return tuple(numbers[0] - x for x in numbers[1:])


def _document(
    path: Path, line: int, value: Any, name: str, strings_are_ids: bool
) -> Document | str:
    if isinstance(value, str):
        text = string_field(path, line, {name: value}, name)
        return text if strings_are_ids else Document(id_of_text(text), "", text)
    if not isinstance(value, Mapping):
        kinds = "a string or an object with 'title' and 'text'"
        raise DataError(path, line, f"field {name!r} must hold {kinds}.", value)
    title = string_field(path, line, value, "title", optional=True)
    text = string_field(path, line, value, "text", blank=bool(title.strip()))
    doc_id = id_of_text(text, title=title)
    if value.get(CONTEXT) is None:
        return Document(doc_id, title, text)
    context = string_field(path, line, value, CONTEXT, blank=True)
    doc_id = id_of_text(f"{doc_id} {context}")  # a sentence of two passages is two candidates
    return Document(doc_id, title, text, {CONTEXT: context})


def pairs_of_rows(
    rows: Any,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    limit: int | None = None,
    argument: str = "path",
) -> Iterator[Pair]:
    """Yields the pairs of rows, and says in the log what was read as what and what was left out.

    Args:
        rows: `tfde.Pair`s; or `(query, document)` and `(query, document, negative, ...)` texts; or
            columns, `(queries, documents, negatives, ...)`; or mappings, a dict of columns, or a
            frame of pandas, polars or pyarrow, with columns as `tfde convert` knows them: a row
            with several documents is several pairs, one labelled 0 is none.
        columns: Kind -> name of each column that has another name, or a list of `KIND=NAME`.
        limit: Take only the first so many pairs; `None` takes all.
        argument: What messages call `rows`.

    Raises:
        ConfigError: `rows` is none of these, or `columns` in another form.
        DataError: a row breaks a rule; its number, from 1, stands where files have lines.
    """
    yield from islice(_pairs(enumerate(_rows(argument, rows), start=1), columns, _PLACE), limit)


def _pairs(
    rows: Iterator[tuple[int | None, Pair | Mapping[str, Any]]],
    columns: Sequence[str] | Mapping[str, str] | None,
    place: Path,
    twins: Twins | None = None,
) -> Iterator[Pair]:
    """Yields the pairs of rows, each of which has a number or line in `place`."""
    given_ids: dict[str, str] = {}
    left_out, described = 0, False
    for number, row in rows:
        if isinstance(row, Pair):
            if not (isinstance(row.query, Query) and isinstance(row.positive, Document)):
                rule = "a tfde.Pair must hold a tfde.Query and tfde.Documents."
                raise DataError(place, number, rule, row)
            yield row
            continue
        if not described:
            logger.info("%s: %s", place, describe_columns(place, number, row, columns))
            described = True
        records = records_of_row(Source("rows", place), number, row, columns, given_ids, twins)
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
        logger.warning("%s: left out: %s documents labelled 0", place, f"{left_out:,}")


def _rows(argument: str, rows: Any) -> Iterator[Pair | Mapping[str, Any]]:
    rows = rows_in_memory(argument, rows)
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping | bytes):
        rule = "a dataset directory, a pair file, a list of pairs, columns or a frame"
        if isinstance(rows, Mapping) and rows:
            rule += f" (of several datasets one, such as that of {next(iter(rows))!r})"
        raise ConfigError(f"`{argument}` must be {rule}. Received: {shorten(rows)}")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Pair):
            yield row
        elif isinstance(row, Mapping):
            yield {name: json_cell(cell) for name, cell in row.items()}
        elif isinstance(row, tuple | list) and len(row) >= 2 and not isinstance(row, _NO_PAIRS):
            query, document, *negatives = map(_text_of_bytes, row)
            if any(map(is_number, negatives)):
                raise DataError(_PLACE, number, f"a pair must hold texts: {NO_LABELS}.", row)
            named = {f"negative_{place}": text for place, text in enumerate(negatives, start=1)}
            yield {"query": query, "document": document, **named}
        else:
            rule = "a pair must be (query, document, negative, ...), a mapping or a tfde.Pair."
            raise DataError(_PLACE, number, rule, row)


def is_number(value: Any) -> bool:
    """Returns whether it is a number, such as a label or a weight; NaN is none."""
    return isinstance(value, bool | np.bool_ | numbers.Real) and value == value


def _text_of_bytes(text: Any) -> Any:
    """Returns bytes as the text that they are, such as TensorFlow's; all else as it is."""
    with contextlib.suppress(AttributeError, UnicodeDecodeError):
        return text.decode()
    return text
