"""sentence-transformers' columns: anchor, positive, negative(s), in JSON Lines, CSV or parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.beir import read_pair_file
from tfde.data.formats.records import Judgement, Record, Source, TrainingPair, without_repeats
from tfde.data.formats.tables import ending, read_rows
from tfde.data.ids import id_of_text
from tfde.data.intake import Intake
from tfde.data.json_lines import string_field, strings_field, write_json_lines
from tfde.errors import DataError, require
from tfde.types import Document, Query

ANCHORS = ("anchor", "query", "question")
POSITIVES = ("positive", "answer")
_NEGATIVE = re.compile(r"negatives?|negative_\d+")


def read(
    sources: Sequence[Source], intake: Intake, *, columns: Sequence[str] | None = None
) -> Iterator[Record]:
    """Yields a query, its documents, a judgement and, with negatives, a pair for each row.

    Columns are `anchor` (or `query`, `question`), `positive` (or `answer`), and any of
    `negative`, `negative_1` ... and `negatives`; a negative may be empty or, except in CSV, a
    list. Other columns are left alone. Ids are hashes of the texts.

    Args:
        sources: The files.
        intake: What becomes of bad rows.
        columns: Names of the query's and the document's column, in place of those above.

    Raises:
        ConfigError: not two `columns`, or a name that ends in none of .jsonl, .csv, .tsv and
            .parquet (.gz, .zst); parquet without pyarrow.
        DataError: a missing column, or a cell that is empty or no text.
    """
    names = [ANCHORS, POSITIVES]
    if columns is not None:
        require(len(columns) == 2, "columns", "those of query and document", list(columns))
        names = [(name,) for name in columns]
    yield from without_repeats(_rows(sources, intake, names))


def _rows(
    sources: Sequence[Source], intake: Intake, names: Sequence[Sequence[str]]
) -> Iterator[Record]:
    for source in sources:
        for row in read_rows(source.path, intake):
            yield from intake.take(_records, source, intake.line, row, names) or ()


def _records(
    source: Source, line: int | None, row: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> list[Record]:
    path = source.path
    anchors, positives = names
    text = string_field(path, line, row, _column(path, line, row, anchors))
    positive = _text(path, line, row, _column(path, line, row, positives))
    negatives: list[Document] = []
    for name in row:
        if _NEGATIVE.fullmatch(name):
            if isinstance(row[name], list):
                negatives += map(_document, strings_field(path, line, row, name))
            elif row[name]:
                negatives.append(_text(path, line, row, name))
    query = Query(id_of_text(text), text)
    records: list[Record] = [positive, *negatives, query]
    records.append(Judgement(source.split, query.query_id, positive.doc_id, 1))
    if negatives:
        ids = tuple(document.doc_id for document in negatives)
        records.append(TrainingPair(source.split, query, positive.doc_id, ids))
    return records


def _column(path: Path, line: int | None, row: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        if name in row:
            return name
    others = f" (or {', '.join(names[1:])}; `columns` names others)" if names[1:] else ""
    # In a table it is the header that lacks it.
    place = 1 if ending(path) in (".csv", ".tsv") else line
    raise DataError(path, place, f"column {names[0]!r}{others} is missing.", " ".join(row))


def _text(path: Path, line: int | None, row: Mapping[str, Any], name: str) -> Document:
    return _document(string_field(path, line, row, name))


def _document(text: str) -> Document:
    return Document(id_of_text(text), "", text)


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `SPLIT.jsonl`, one line for each relevant document of each query.

    Title and text stand together, as there is one column. Where the dataset has pairs, their
    negatives are `negative_1` ...; a line with fewer than others has them as null, so that all
    lines have the same columns. Memory holds the texts of the documents that a split names.
    """
    counts = {}
    for split in splits:
        name = f"{split}.jsonl{suffix}"
        counts[name] = write_json_lines(directory / name, _columns(dataset, split))
    return counts


def _columns(dataset: DatasetDirectory, split: str) -> Iterator[dict[str, str | None]]:
    negatives: dict[tuple[str, str], dict[str, None]] = {}
    if split in dataset.pair_splits:
        for pair in read_pair_file(dataset.pair_file(split), split, Intake()):
            key = pair.query.query_id, pair.positive
            negatives.setdefault(key, {}).update(dict.fromkeys(pair.negatives))
    width = max(map(len, negatives.values()), default=0)
    qrels = dataset.qrels(split)
    wanted = {doc_id for judged in qrels.values() for doc_id in judged}
    store = dataset.document_store(wanted.union(*negatives.values()))

    def text(doc_id: str) -> str:
        return f"{store[doc_id].title} {store[doc_id].text}".strip()

    for query in dataset.queries(split):
        for doc_id, relevance in qrels[query.query_id].items():
            if relevance > 0:
                row: dict[str, str | None] = {"anchor": query.text, "positive": text(doc_id)}
                given = list(negatives.get((query.query_id, doc_id), ()))
                for place in range(width):
                    has_one = place < len(given)
                    row[f"negative_{place + 1}"] = text(given[place]) if has_one else None
                yield row
