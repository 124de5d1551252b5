"""The dataset directory (BEIR's layout): corpus, queries and judgements by split."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfde.argument_types import typed
from tfde.data.ids import KnownIds, parent_of
from tfde.data.metadata import DOCUMENT_FIELDS, QUERY_FIELDS, metadata_of
from tfde.data.qrels import read_qrels
from tfde.errors import ConfigError, DataError, shorten
from tfde.storage.compressed import SUFFIXES, read_lines
from tfde.storage.files import sha256
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, read_json_lines, string_field, strings_field
from tfde.types import CONTEXT, Document, Qrels, Query

logger = logging.getLogger(__name__)

Text = TypeVar("Text", Document, Query)

_ORDER = {"train": 0, "dev": 1, "test": 2}


class DatasetDirectory:
    """A directory with `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`.

    There may be more: `answers.jsonl`, the accepted answers to questions, and `pairs/SPLIT.jsonl`,
    training pairs with given negatives. Each file may be packed (`.gz`, `.zst`).
    Records are streamed: nothing of the corpus stays in memory unless `document_store` is asked
    for. Every bad record raises an error that names file, line, rule and value.

    Args:
        path: The directory.

    Raises:
        ConfigError: the directory or its corpus is missing.
    """

    @typed
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigError(
                f"{self.path}: a dataset directory (corpus.jsonl[.gz], queries.jsonl[.gz],"
                " qrels/SPLIT.tsv[.gz]) must stand here; there is no such directory."
            )
        self.file("corpus.jsonl")

    def __repr__(self) -> str:
        splits = ", ".join(self.splits) or "no splits"
        return f"DatasetDirectory({str(self.path)!r}: {splits})"

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that have judgements: train, dev, test first, then others by name."""
        return self._splits("qrels", ".tsv")

    @functools.cached_property
    def pair_splits(self) -> tuple[str, ...]:
        """The splits that have a file of training pairs, in the order of `splits`."""
        return self._splits("pairs", ".jsonl")

    @property
    def has_queries(self) -> bool:
        """Whether there is a file of queries; a corpus alone has none."""
        return self._find("queries.jsonl") is not None

    @property
    def has_answers(self) -> bool:
        """Whether there is a file of accepted answers."""
        return self._find("answers.jsonl") is not None

    @functools.cached_property
    def num_documents(self) -> int:
        """How many documents the corpus holds (counted once, lines are not parsed)."""
        return sum(1 for _ in read_lines(self.file("corpus.jsonl")))

    def documents(self) -> Iterator[Document]:
        """Streams the corpus in file order.

        Raises:
            DataError: not JSON, a missing field, a wrong type, an id with white space, or a
                duplicate id.
        """
        return unique_documents(self.file("corpus.jsonl"))

    def documents_through(self, intake: Intake) -> Iterator[Document]:
        """Streams the corpus in file order.

        Args:
            intake: Takes bad records, a document whose id came before among them.

        Raises:
            DataError: as `documents`, where the intake does not skip.
        """
        path, known = self.file("corpus.jsonl"), KnownIds()
        for document in stream_documents(path, intake):
            if known.add(document.doc_id):
                yield document
            else:
                rule = "field '_id' must be unique."
                error = DataError(path, intake.line, rule, document.doc_id)
                intake.bad(error, "id that comes twice")

    def queries(self, split: str | None = None) -> Iterator[Query]:
        """Streams the queries in file order; with `split` only those judged in it.

        Raises:
            ConfigError: there is no such split.
            DataError: as `documents`; or the split judges a query that does not exist.
        """
        judged = None if split is None else set(self.qrels(split))
        return self._queries(split, judged)

    def _queries(self, split: str | None, judged: set[str] | None) -> Iterator[Query]:
        found = set()
        for record in _unique(self.file("queries.jsonl"), stream_queries):
            if judged is None:
                yield record
            elif record.query_id in judged:
                found.add(record.query_id)
                yield record
        if judged is not None and split is not None and len(found) < len(judged):
            read_qrels(self.qrels_file(split), query_ids=found)  # names the line

    def qrels(self, split: str) -> Qrels:
        """Returns the judgements of a split, `{query_id: {doc_id: relevance}}`.

        They are what is measured against: a document that is not in the corpus counts as not
        found. Whether queries exist is checked by `validate`.

        Raises:
            ConfigError: there is no such split.
            DataError: a line breaks a rule of the format.
        """
        return read_qrels(self.qrels_file(split))

    def all_qrels(self) -> Qrels:
        """Returns the judgements of all splits; of two for a document the higher one.

        Raises:
            DataError: as `qrels`.
        """
        judged: Qrels = {}
        for split in self.splits:
            for query_id, documents in self.qrels(split).items():
                known = judged.setdefault(query_id, {})
                known |= {d: max(grade, known.get(d, grade)) for d, grade in documents.items()}
        return judged

    def relevant(self, split: str) -> dict[str, tuple[str, ...]]:
        """Returns the relevant documents of each judged query that stand in the corpus.

        For what needs their texts. Memory holds their ids.

        Raises:
            ConfigError: there is no such split.
            DataError: as `qrels` and `documents`.
        """
        relevant = {
            query_id: [doc_id for doc_id, relevance in judged.items() if relevance > 0]
            for query_id, judged in self.qrels(split).items()
        }
        wanted = set().union(*relevant.values())
        there = {document.doc_id for document in self.documents() if document.doc_id in wanted}
        _tell_missing(self.qrels_file(split), relevant, there)
        return {
            query_id: tuple(doc_id for doc_id in doc_ids if doc_id in there)
            for query_id, doc_ids in relevant.items()
        }

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Returns the accepted answers by query id, from `answers.jsonl`.

        Raises:
            ConfigError: there is no such file.
            DataError: a line breaks a rule of the format, or a query comes twice.
        """
        path = self.file("answers.jsonl")
        answers: dict[str, tuple[str, ...]] = {}
        intake = Intake()
        for query_id, texts in stream_answers(path, intake):
            if query_id in answers:
                raise DataError(path, intake.line, "field '_id' must be unique.", query_id)
            answers[query_id] = texts
        return answers

    def document_store(self, doc_ids: Collection[str] | None = None) -> dict[str, Document]:
        """Returns documents by id, in memory: those asked for that exist, or all."""
        wanted = None if doc_ids is None else set(doc_ids)
        return {
            document.doc_id: document
            for document in self.documents()
            if wanted is None or document.doc_id in wanted
        }

    def named_documents(self, doc_ids: Collection[str]) -> dict[str, Document]:
        """Returns documents by id, in memory.

        Raises:
            DataError: one is not in the corpus.
        """
        found = self.document_store(doc_ids)
        for doc_id in set(doc_ids).difference(found):
            raise DataError(self.path, None, "pairs must name documents of the corpus.", doc_id)
        return found

    def validate(
        self, splits: Iterable[str] | None = None, *, parent_separator: str | None = None
    ) -> None:
        """Reads every record once and checks that all judged queries exist.

        How many judged documents are not in the corpus is told in the log (BEIR's ArguAna has
        five).

        Args:
            splits: The splits to check; `None` checks all.
            parent_separator: The corpus holds passages, and the judgements are of the documents
                that they are cut from: what stands in ids between the two.

        Raises:
            DataError: the first record that breaks a rule, or judgement of an unknown query; no
                judged document of a split is in the corpus.
        """
        doc_ids, query_ids = KnownIds(), KnownIds()  # a set of strings takes ten times as much
        for document in self.documents():
            doc_id = document.doc_id
            doc_ids.add(doc_id if parent_separator is None else parent_of(doc_id, parent_separator))
        for query in self.queries():
            query_ids.add(query.query_id)
        for split in self.splits if splits is None else splits:
            path = self.qrels_file(split)
            _tell_missing(path, read_qrels(path, query_ids=query_ids), doc_ids)

    def checksums(self) -> dict[str, str]:
        """Returns the sha256 (hexadecimal) of corpus, queries and qrels, by their paths inside.

        Answers and given pairs do not count.
        """
        files = [self.file("corpus.jsonl")]
        if self.has_queries or self.splits:
            files.append(self.file("queries.jsonl"))
        files += [self.qrels_file(split) for split in self.splits]
        return {path.relative_to(self.path).as_posix(): sha256(path) for path in files}

    def file(self, name: str) -> Path:
        """Returns the path of a file, plain or packed; raises ConfigError if there is none."""
        path = self._find(name)
        if path is None:
            raise ConfigError(f"{self.path}: a dataset directory must hold {name} or {name}.gz.")
        return path

    def qrels_file(self, split: str) -> Path:
        """Returns the path of the judgements of a split; raises ConfigError if there are none."""
        if split not in self.splits:
            there = ", ".join(self.splits) or "none (no qrels/SPLIT.tsv)"
            raise ConfigError(
                f"{self.path}: `split` must be one of its splits: {there}. Received: {split!r}"
            )
        return self.file(f"qrels/{split}.tsv")

    def pair_file(self, split: str) -> Path:
        """Returns the path of the training pairs of a split; raises ConfigError if none."""
        return self.file(f"pairs/{split}.jsonl")

    def _find(self, name: str) -> Path | None:
        paths = (self.path / f"{name}{suffix}" for suffix in ("", *SUFFIXES))
        return next((path for path in paths if path.is_file()), None)

    def _splits(self, folder: str, ending: str) -> tuple[str, ...]:
        names = {
            path.name.removesuffix(suffix).removesuffix(ending)
            for suffix in ("", *SUFFIXES)
            for path in self.path.glob(f"{folder}/*{ending}{suffix}")
        }
        return tuple(sorted(names, key=lambda name: (_ORDER.get(name, 3), name)))


def unique_documents(path: str | Path) -> Iterator[Document]:
    """Streams a corpus file in its order.

    Raises:
        DataError: as `DatasetDirectory.documents`.
    """
    return _unique(Path(path), stream_documents)


def stream_documents(path: Path, intake: Intake) -> Iterator[Document]:
    """Yields the documents of a corpus file, without a look at duplicates.

    Raises:
        DataError: as `DatasetDirectory.documents`.
    """
    empty, first = 0, 0
    context: Any = ""
    for line, record in read_json_lines(path, intake):
        document = intake.take(_document, path, line, record)
        if document is not None:
            if document.metadata and context and document.context == context:
                # The sentences of a passage follow one another: memory holds it once.
                metadata = {**document.metadata, CONTEXT: context}
                document = document._replace(metadata=metadata)
            context = document.context
            if not document.title.strip() and not document.text.strip():
                empty, first = empty + 1, first or line
            yield document
    if empty:
        _tell_once(
            f"{path}: documents without title and text are taken as they are: {empty:,}, the first"
            f" in line {first}."
        )


def stream_queries(path: Path, intake: Intake) -> Iterator[Query]:
    """Yields the queries of a file of queries, without a look at duplicates.

    Raises:
        DataError: as `DatasetDirectory.queries`.
    """
    for line, record in read_json_lines(path, intake):
        query = intake.take(_query, path, line, record)
        if query is not None:
            yield query


def stream_answers(path: Path, intake: Intake) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields query id and accepted answers of each line of a file of answers.

    Raises:
        DataError: not JSON, a missing field, a wrong type.
    """
    for line, record in read_json_lines(path, intake):
        answers = intake.take(_answers, path, line, record)
        if answers is not None:
            yield answers


def _document(path: Path, line: int, record: dict[str, Any]) -> Document:
    doc_id = id_field(path, line, record, "_id")
    title = string_field(path, line, record, "title", optional=True)
    # An empty text is a document: BEIR's TREC-COVID has titles alone, its FiQA not even these.
    text = string_field(path, line, record, "text", blank=True)
    return Document(doc_id, title, text, metadata_of(path, line, record, DOCUMENT_FIELDS))


def _query(path: Path, line: int, record: dict[str, Any]) -> Query:
    query_id = id_field(path, line, record, "_id")
    text = string_field(path, line, record, "text")
    return Query(query_id, text, metadata_of(path, line, record, QUERY_FIELDS))


def _tell_missing(path: Path, judged: Mapping[str, Iterable[str]], doc_ids: Container[str]) -> None:
    """Tells how many judged documents are not in the corpus; raises DataError if none is."""
    named = [doc_id for documents in judged.values() for doc_id in documents]
    missing = [doc_id for doc_id in named if doc_id not in doc_ids]
    if missing and len(missing) == len(named):
        rule = "no judged document is in the corpus. Passages of tfde chunk want --max_passage."
        raise DataError(path, None, rule, missing[0])
    if missing:
        _tell_once(
            f"{path}: {len(missing):,} judgements are of documents that are not in the corpus,"
            f" such as {shorten(missing[0])}: they count as not found."
        )


@functools.cache
def _tell_once(message: str) -> None:
    """Warns in the log, once a process: a corpus is read several times."""
    logger.warning("%s", message)


def _answers(path: Path, line: int, record: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    query_id = id_field(path, line, record, "_id")
    return query_id, strings_field(path, line, record, "answers")


def _unique(path: Path, stream: Callable[[Path, Intake], Iterator[Text]]) -> Iterator[Text]:
    known = KnownIds()
    for item in stream(path, Intake()):
        if not known.add(item[0]):
            _name_duplicate(path)
        yield item


def _name_duplicate(path: Path) -> None:
    first: dict[str, int] = {}
    for line, record in read_json_lines(path):
        if first.setdefault(record["_id"], line) != line:
            rule = f"field '_id' must be unique; line {first[record['_id']]} has it too."
            raise DataError(path, line, rule, record["_id"])
