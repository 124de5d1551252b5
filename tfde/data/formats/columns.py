"""sentence-transformers' columns: anchor, positive, negative(s), in JSON Lines, CSV or parquet."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.beir import read_pair_file
from tfde.data.formats.csv_rows import ending, read_rows
from tfde.data.formats.records import Judgement, Record, Source, TrainingPair, without_repeats
from tfde.data.ids import KnownIds, id_of_text
from tfde.data.metadata import metadata_of
from tfde.errors import DataError, require
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, string_field, strings_field, write_json_lines
from tfde.types import CONTEXT, Document, Query

# What a column may be called, in any case, where `columns` does not say it.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "query": ("anchor", "query", "question"),
    "document": ("positive", "answer", "document", "passage"),
    "title": ("title",),
    "id": ("doc_id", "document_id", "passage_id", "corpus_id"),
    "query_id": ("query_id", "question_id"),
    "label": ("label", "labels", "score", "scores", "relevance"),
}
_HIGHEST_GRADE = 100  # a number of a row or a price is none
NEGATIVE = re.compile(r"negatives?|negative_\d+", re.IGNORECASE)


# Hash of a text -> the document that has it.
Twins = Mapping[str, Document | None]


class Columns(NamedTuple):
    """Which column of a table is what; `None` where the table has none of a kind."""

    query: str
    document: str
    title: str | None
    id: str | None
    query_id: str | None
    label: str | None
    negatives: tuple[str, ...]


def read(
    sources: Sequence[Source], intake: Intake, *, columns: Sequence[str] | None = None
) -> Iterator[Record]:
    """Yields a query, its documents, judgements and, with negatives, a pair for each row.

    Columns are known by `KNOWN_NAMES`, in any case, and any of `negative`, `negative_1` ... and
    `negatives`. A cell of documents, labels or negatives may be a list (in CSV in JSON's writing,
    `["x", "y"]`); a negative may be empty. A label is a grade: 0 is judged and not relevant. Ids
    that the table does not give are hashes of title and text.

    Args:
        sources: The files.
        intake: What becomes of bad rows.
        columns: `KIND=NAME` for each column that has another name (`label=` reads no label), or
            the names of the query's and the document's column.

    Raises:
        ConfigError: `columns` in another form, or a file of another kind than
            `read_rows` knows; parquet without pyarrow.
        DataError: a missing column; a cell that is empty or no text; a label that is no whole
            number from 0 on, or not one for each document; an id that stands for two texts.
    """
    yield from without_repeats(_rows(sources, intake, column_names(columns)))


def column_names(columns: Sequence[str] | Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """Returns the names that a column of each kind may have.

    Args:
        columns: As `read` takes them.

    Raises:
        ConfigError: `columns` in another form, or of an unknown kind.
    """
    names = dict(KNOWN_NAMES)
    if isinstance(columns, Mapping):
        columns = [f"{kind}={name}" for kind, name in columns.items()]
    parts = [column.partition("=") for column in columns or ()]
    if columns and not any(equals for _, equals, _ in parts):
        require(len(columns) == 2, "columns", "KIND=NAME, or query's and document's", list(columns))
        return names | {"query": (columns[0],), "document": (columns[1],)}
    for kind, equals, name in parts:
        rule = f"KIND=NAME with a kind of {', '.join(names)}"
        require(bool(equals) and kind in names, "columns", rule, f"{kind}{equals}{name}")
        names[kind] = (name,) if name else ()
    return names


def understood(source: Source, columns: Sequence[str] | None = None) -> str:
    """Returns in one line which columns of a table are read as what, and which are not.

    "" where the first row is bad, which reading then tells.

    Raises:
        ConfigError: as `read`.
    """
    intake = Intake()
    try:
        row = next(iter(read_rows(source.path, intake)))
        return describe_columns(source.path, intake.line, row, columns)
    except (DataError, StopIteration):
        return ""


def describe_columns(
    path: Path,
    line: int | None,
    row: Mapping[str, Any],
    columns: Sequence[str] | Mapping[str, str] | None,
) -> str:
    """Returns what `understood` does, of a row that was read.

    Raises:
        ConfigError: as `read`.
        DataError: a column is missing.
    """
    found = _columns_of(path, line, row, column_names(columns))
    taken = {kind: name for kind, name in found._asdict().items() if isinstance(name, str)}
    parts = [f"{kind} from {name!r}" for kind, name in taken.items()]
    if found.negatives:
        parts.append(f"negatives from {', '.join(map(repr, found.negatives))}")
    rest = [name for name in row if name not in (*taken.values(), *found.negatives)]
    if rest:
        parts.append(f"metadata of documents from {', '.join(map(repr, rest))}")
    return "; ".join(parts)


def is_column_of_table(name: str, value: Any) -> bool:
    """Returns whether a record of `query` and `positive` with such a field is no pair file's."""
    if NEGATIVE.fullmatch(name):
        return name != "negatives" or not isinstance(value, list | None)
    kinds = ("title", "id", "label")
    known = name.lower() in {other for kind in kinds for other in KNOWN_NAMES[kind]}
    return known and value is not None and not isinstance(value, Mapping)


def _columns_of(
    path: Path, line: int | None, row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> Columns:
    lower = {name.strip().lower(): name for name in reversed(list(row))}
    found: dict[str, str | None] = {}
    for kind, candidates in names.items():
        given = candidates != KNOWN_NAMES[kind]
        found[kind] = next((name for name in candidates if name in row), None)
        if not given and found[kind] is None:
            found[kind] = next((lower[name] for name in candidates if name in lower), None)
        if found[kind] is None and candidates and (given or kind in ("query", "document")):
            rule = f"no column is called {candidates[0]!r}, which `columns` names for the {kind}."
            if not given:
                known = f"{', '.join(candidates[:-1])} or {candidates[-1]}"
                rule = (
                    f"no column holds the {kind}: it must be called {known}, or be named by"
                    f" `columns` (of the command, or of `tfde.pairs`): {kind}=NAME."
                )
            place = 1 if _has_header(path) else line
            raise DataError(path, place, rule, ", ".join(row))
    negatives = tuple(name for name in row if NEGATIVE.fullmatch(name))
    query, document = found.pop("query"), found.pop("document")
    return Columns(query or "", document or "", **found, negatives=negatives)


def _rows(
    sources: Sequence[Source], intake: Intake, names: Mapping[str, tuple[str, ...]]
) -> Iterator[Record]:
    given_ids: dict[str, str] = {}
    twins = documents_by_text([source.path for source in sources], names)
    known, documents, described = KnownIds(), KnownIds(), KnownIds()
    for source in sources:
        for number, row in enumerate(read_rows(source.path, intake)):
            if number == 0 and _has_header(source.path):
                _columns_of(source.path, intake.line, row, names)  # no bad row: the whole table
            line = intake.line
            records = intake.take(_records, source, line, row, names, given_ids, twins) or []
            says = [one for one in records if isinstance(one, Judgement | TrainingPair)]
            negatives = any(isinstance(one, TrainingPair) and one.negatives for one in says)
            if says and not negatives and not known.add(repr(says)):
                intake.leave_out("rows that were there before")
                continue
            for one in records:
                if isinstance(one, Document):
                    first = documents.add(one.doc_id)
                    other = one.metadata and described.add(f"{one.doc_id} {one.metadata}")
                    if other and not first:
                        intake.leave_out("other metadata of documents that were there before")
            yield from records


def records_of_row(
    source: Source,
    line: int | None,
    row: Mapping[str, Any],
    columns: Sequence[str] | Mapping[str, str] | None,
    given_ids: dict[str, str],
    twins: Twins | None = None,
) -> list[Record]:
    """Returns the records of a row: documents, the query, judgements, pairs.

    Args:
        source: Where it is from, for messages.
        line: Its line or number there.
        row: Column -> cell.
        columns: As in `read`.
        given_ids: Ids of earlier rows, to be given again.
        twins: Of `documents_by_text`.

    Raises:
        ConfigError: as `read`.
        DataError: as `read`.
    """
    return _records(source, line, row, column_names(columns), given_ids, twins or {})


def documents_by_text(paths: Sequence[Path], names: Mapping[str, tuple[str, ...]]) -> Twins:
    """Returns the documents that negatives of equal texts are, where rows have titles or ids.

    A negative has neither in its own row: it would be a second document.

    Args:
        paths: Of the tables; those without negatives, or without titles and ids, are not read.
        names: Of `column_names`.

    Returns:
        Hash of a text -> its document; `None` where it is that of several.
    """
    found: dict[str, Document | None] = {}
    for path in paths:
        intake = Intake(skip_bad=True)  # whoever reads the rows tells of bad ones
        for row in read_rows(path, intake):
            with contextlib.suppress(DataError):
                columns = _columns_of(path, intake.line, row, names)
                if not (columns.negatives and (columns.title or columns.id)):
                    break
                for document in _documents(path, intake.line, row, columns):
                    key = id_of_text(document.text)
                    same = found.setdefault(key, document) == document
                    found[key] = document if same else None
    return found


def _documents(
    path: Path, line: int | None, row: Mapping[str, Any], columns: Columns
) -> list[Document]:
    doc_id = _given_id(path, line, row, columns.id)
    title = string_field(path, line, row, columns.title, optional=True) if columns.title else ""
    documents = [_document(part, title) for part in _texts(path, line, row, columns.document)]
    known = [name for name in (*columns[:6], *columns.negatives) if name]
    metadata = metadata_of(path, line, row, known)
    documents = [document._replace(metadata=metadata) for document in documents]
    if isinstance(context := (metadata or {}).get(CONTEXT), str) and not doc_id:
        # A sentence of two passages is two candidates.
        documents = [d._replace(doc_id=id_of_text(f"{d.doc_id} {context}")) for d in documents]
    if doc_id:
        if len(documents) > 1:
            rule = f"column {columns.id!r} must name one document, but there are {len(documents)}."
            raise DataError(path, line, rule, doc_id)
        documents = [documents[0]._replace(doc_id=doc_id)]
    return documents


def _records(
    source: Source,
    line: int | None,
    row: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    given_ids: dict[str, str],
    twins: Twins,
) -> list[Record]:
    path = source.path
    columns = _columns_of(path, line, row, names)
    text = string_field(path, line, row, columns.query)
    query_id = _given_id(path, line, row, columns.query_id) or id_of_text(text)
    documents = _documents(path, line, row, columns)
    labels = _labels(path, line, row, columns.label, len(documents))
    negatives = [
        twins.get(id_of_text(part)) or _document(part, "")
        for name in columns.negatives
        if (cell := _filled(row[name]))
        for part in _texts(path, line, {name: cell}, name)
    ]
    if columns.query_id:
        _check_id(path, line, f"q {query_id}", text, given_ids)
    if _given_id(path, line, row, columns.id):
        (given,) = documents
        _check_id(path, line, f"d {given.doc_id}", f"{given.title}\n{given.text}", given_ids)
    query = Query(query_id, text)
    records: list[Record] = [*documents, *negatives, query]
    relevant = []
    for document, label in zip(documents, labels, strict=True):
        records.append(Judgement(source.split, query_id, document.doc_id, label))
        if label > 0:
            relevant.append(document.doc_id)
    if columns.negatives:  # whether this row has some or none
        ids = tuple(document.doc_id for document in negatives)
        records += [TrainingPair(source.split, query, positive, ids) for positive in relevant]
    return records


def _has_header(path: Path) -> bool:
    """Whether the first line says which columns all rows have."""
    return ending(path) in (".csv", ".tsv")


def _check_id(
    path: Path, line: int | None, given: str, text: str, given_ids: dict[str, str]
) -> None:
    if given_ids.setdefault(given, id_of_text(text)) != id_of_text(text):
        raise DataError(path, line, "an id must stand for one text.", given[2:])


def _given_id(path: Path, line: int | None, row: Mapping[str, Any], name: str | None) -> str:
    if name is None:
        return ""
    value = row.get(name)
    if value is None or value == "":
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes fractions of numbers where one is missing
    return id_field(path, line, {name: str(value) if type(value) is int else value}, name)


def _texts(path: Path, line: int | None, row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = _listed(row.get(name))
    if isinstance(value, list):
        texts = strings_field(path, line, {name: value}, name)
        if not texts:
            raise DataError(path, line, f"field {name!r} must hold at least one text.", value)
        return texts
    return (string_field(path, line, row, name),)


def _filled(cell: Any) -> Any:
    """Returns a cell of negatives; of a list those that are not empty, as padding is."""
    value = _listed(cell)
    if isinstance(value, list):
        return [text for text in value if _filled(text)]
    return value.strip() and value if isinstance(value, str) else value


def _labels(
    path: Path, line: int | None, row: Mapping[str, Any], name: str | None, count: int
) -> list[int]:
    if name is None:
        return [1] * count
    value = _listed(row.get(name))
    values = value if isinstance(value, list) else [value]
    if len(values) != count:
        rule = f"column {name!r} must hold a label for each of the {count} documents."
        raise DataError(path, line, rule, value)
    labels = []
    for each in values:
        try:
            number = float(each)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 <= number <= _HIGHEST_GRADE or not number.is_integer():
            rule = (
                f"column {name!r} must hold grades: 0 (not relevant), 1, 2 ... {_HIGHEST_GRADE}"
                " (`columns` with label= reads none)."
            )
            raise DataError(path, line, rule, each)
        labels.append(int(number))
    return labels


def _listed(value: Any) -> Any:
    """Returns the list that a cell of a CSV writes as JSON or, by pandas, as Python does."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(value)
            return parsed if isinstance(parsed, list) else value
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            parsed = ast.literal_eval(value)
            if isinstance(parsed, list) and repr(parsed) == value:  # as a text in brackets is not
                return parsed
    return value


def _document(text: str, title: str) -> Document:
    return Document(id_of_text(text, title=title), title, text)


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `SPLIT.jsonl`, one line for each relevant document of each query.

    Title and text stand together, as there is one column. Where the dataset has pairs, their
    negatives are `negative_1` ... Each line of a file has all its columns, as sentence-transformers
    wants them: one with fewer negatives than others has its own again, in their order, and those
    without any stand in a file of their own, `SPLIT.pairs.jsonl`. Memory holds the texts of the
    documents that a split names.
    """
    counts = {}
    for split in splits:
        negatives, relevant = _negatives(dataset, split), dataset.relevant(split)
        width = max(map(len, negatives.values()), default=0)
        documents = dataset.named_documents(set().union(*relevant.values(), *negatives.values()))
        texts = {d: f"{found.title} {found.text}".strip() for d, found in documents.items()}
        whole: list[tuple[str, str, Sequence[str]]] = []
        alone: list[tuple[str, str, Sequence[str]]] = []
        for query in dataset.queries(split):
            for doc_id in relevant[query.query_id]:
                given = negatives.get((query.query_id, doc_id), ())
                rows = alone if width and not given else whole
                rows.append((query.text, doc_id, given))
        files = {f"{split}.jsonl{suffix}": whole}
        if alone:
            files[f"{split}.pairs.jsonl{suffix}"] = alone
        for name, rows in files.items():
            records = (_row(*row, texts, width) for row in rows)
            counts[name] = write_json_lines(directory / name, records)
    return counts


def _negatives(dataset: DatasetDirectory, split: str) -> dict[tuple[str, str], list[str]]:
    """Returns the negatives of each pair of a query and a relevant document that has some."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    if split in dataset.pair_splits:
        for pair in read_pair_file(dataset.pair_file(split), split, Intake()):
            key = pair.query.query_id, pair.positive
            found.setdefault(key, {}).update(dict.fromkeys(pair.negatives))
    return {key: list(ids) for key, ids in found.items() if ids}


def _row(
    query: str, positive: str, negatives: Sequence[str], texts: Mapping[str, str], width: int
) -> dict[str, str]:
    """Returns a row of a table, its negatives as often as there are columns."""
    row = {"anchor": query, "positive": texts[positive]}
    for place in range(width if negatives else 0):
        row[f"negative_{place + 1}"] = texts[negatives[place % len(negatives)]]
    return row
