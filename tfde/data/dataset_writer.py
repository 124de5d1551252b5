"""Writes a dataset directory from a stream of records."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from tfde.data.formats.records import Answers, Judgement, Record, TrainingPair
from tfde.data.ids import KnownIds
from tfde.data.metadata import document_record, query_record
from tfde.data.qrels import HEADER, qrel_line
from tfde.errors import DataError
from tfde.storage.atomic import atomic_directory
from tfde.storage.compressed import open_writer
from tfde.storage.intake import Intake
from tfde.storage.json_lines import json_line
from tfde.types import Document, Qrels, Query


class DatasetCounts(NamedTuple):
    """What was written: numbers of records; judged queries and pairs by split.

    `empty` documents have neither title nor text; `judged_elsewhere` counts the judgements of
    documents that are not in the corpus; `without_relevant` the queries by split of which no
    document is relevant.
    """

    documents: int
    queries: int
    answered: int
    judged: dict[str, int]
    pairs: dict[str, int]
    empty: int = 0
    judged_elsewhere: int = 0
    without_relevant: Mapping[str, int] = MappingProxyType({})


def write_dataset(
    path: str | Path,
    records: Iterable[Record],
    *,
    splits: Iterable[str] = (),
    overwrite: bool = False,
    intake: Intake | None = None,
) -> DatasetCounts:
    """Writes a dataset directory, streamed; it appears whole or not at all.

    A judgement, answers and a pair come after the documents and the query that they name. A
    judgement may be of a document that is not in the corpus: whoever judged a larger one found it
    relevant, so it counts as not found. Memory holds a number for each id, about 80 bytes, and no
    text.

    Args:
        path: The directory; `corpus.jsonl.gz`, `queries.jsonl.gz`, `qrels/SPLIT.tsv` and, where
            there are such records, `answers.jsonl.gz` and `pairs/SPLIT.jsonl.gz`.
        records: The records.
        splits: Splits whose judgements get a file even if there are none.
        overwrite: Whether a directory that holds something is replaced.
        intake: What the readers of `records` use: the place that errors name, and whether bad
            records are skipped.

    Raises:
        ConfigError: `path` is a file, or a directory that is not empty without `overwrite`.
        DataError: a record breaks a rule of the format (an id twice, an unknown id ...), there is
            no document, or no judged document is in the corpus; nothing is left behind.
    """
    with atomic_directory(path, overwrite=overwrite) as temporary:
        writer = _Writer(temporary, Path(path), intake or Intake())
        with writer:
            for split in splits:
                writer.file(f"qrels/{split}.tsv")
            for record in records:
                writer.write(record)
        counts = writer.counts()
        if not counts.documents:
            raise DataError(
                writer.intake.path or path, None, "the corpus is empty: no document was read."
            )
        writer.check_judged()
    return counts


class _Writer:
    """The open files of a dataset directory, and the ids that stand in it."""

    def __init__(self, directory: Path, target: Path, intake: Intake) -> None:
        self.intake = intake
        self._directory, self._target = directory, target
        self._stack = contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._lines: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()  # judgements of documents not in the corpus
        self._empty = 0
        self._documents, self._queries = KnownIds(), KnownIds()
        self._answered = KnownIds()
        # Per split: judged queries, those with a relevant document, pairs of query and document.
        self._judged: defaultdict[str, KnownIds] = defaultdict(KnownIds)
        self._relevant: defaultdict[str, KnownIds] = defaultdict(KnownIds)
        self._judgements: defaultdict[str, KnownIds] = defaultdict(KnownIds)

    def __enter__(self) -> _Writer:
        self._stack.__enter__()
        self.file("corpus.jsonl.gz")
        self.file("queries.jsonl.gz")
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, record: Record) -> None:
        """Writes one record; one that breaks a rule is raised or skipped, as the intake says."""
        if isinstance(record, Document):
            self.intake.take(self._document, record)
        elif isinstance(record, Query):
            self.intake.take(self._query, record)
        elif isinstance(record, Judgement):
            self.intake.take(self._judgement, record)
        elif isinstance(record, Answers):
            self.intake.take(self._answers, record)
        else:
            self.intake.take(self._pair, record)

    def file(self, name: str) -> BinaryIO:
        """Returns an open file; one of judgements begins with its header."""
        if name not in self._files:
            self._files[name] = self._stack.enter_context(open_writer(self._directory / name))
            if name.startswith("qrels/"):
                self._judged[name.removeprefix("qrels/").removesuffix(".tsv")]
                self._line(name, "\t".join(HEADER).encode() + b"\n")
        return self._files[name]

    def counts(self) -> DatasetCounts:
        """Returns what was written so far."""
        pairs = {
            name.removeprefix("pairs/").removesuffix(".jsonl.gz"): lines
            for name, lines in self._lines.items()
            if name.startswith("pairs/")
        }
        judged = {split: len(ids) for split, ids in self._judged.items()}
        texts = (len(self._documents), len(self._queries), len(self._answered))
        elsewhere = sum(self._elsewhere.values())
        unanswered = {split: judged[split] - len(self._relevant[split]) for split in judged}
        return DatasetCounts(*texts, judged, pairs, self._empty, elsewhere, unanswered)

    def check_judged(self) -> None:
        """Refuses a split of which no judged document is in the corpus."""
        for name, count in self._elsewhere.items():
            if count == self._lines[name] - 1:  # its header is one
                rule = "no judged document is in the corpus."
                raise DataError(self._target / name, None, rule)

    def _document(self, document: Document) -> None:
        name = "corpus.jsonl.gz"
        self._check_id(name, document.doc_id)
        line = self._encoded(name, document_record(document))
        self._new(name, self._documents, document.doc_id)
        self._empty += not document.title.strip() and not document.text.strip()
        self.intake.look_at(f"{document.title} {document.text}".strip())
        self._line(name, line)

    def _query(self, query: Query) -> None:
        name = "queries.jsonl.gz"
        self._check_id(name, query.query_id)
        if not query.text.strip():
            raise self._fault(name, "a query must have a text.", query.query_id)
        line = self._encoded(name, query_record(query))
        self._new(name, self._queries, query.query_id)
        self.intake.look_at(query.text)
        self._line(name, line)

    def _judgement(self, record: Judgement) -> None:
        name = f"qrels/{record.split}.tsv"
        self._known(name, "query-id", record.query_id)
        both = f"{record.query_id} {record.doc_id}"
        if not self._judgements[record.split].add(both):
            raise self._fault(name, "a query and document must be judged once.", both)
        line = f"{qrel_line(record.query_id, record.doc_id, record.relevance)}\n"
        self._elsewhere[name] += record.doc_id not in self._documents
        self._line(name, line.encode())
        self._judged[record.split].add(record.query_id)
        if record.relevance > 0:
            self._relevant[record.split].add(record.query_id)

    def _answers(self, record: Answers) -> None:
        name = "answers.jsonl.gz"
        self._known(name, "query-id", record.query_id)
        line = self._encoded(name, {"_id": record.query_id, "answers": list(record.texts)})
        if not self._answered.add(record.query_id):
            raise self._fault(name, "a query must have its answers in one place.", record.query_id)
        self._line(name, line)

    def _pair(self, record: TrainingPair) -> None:
        name = f"pairs/{record.split}.jsonl.gz"
        self._known(name, "query-id", record.query.query_id)
        for doc_id in (record.positive, *record.negatives):
            self._known(name, "corpus-id", doc_id)
        pair = {
            "query": record.query.text,
            "query_id": record.query.query_id,
            "positive": record.positive,
            "negatives": list(record.negatives),
        }
        self._line(name, self._encoded(name, pair))

    def _check_id(self, name: str, value: str) -> None:
        if value.split() != [value]:
            raise self._fault(name, "field '_id' must not be empty or hold white space.", value)

    def _new(self, name: str, known: KnownIds, value: str) -> None:
        if not known.add(value):
            raise self._fault(name, "field '_id' must be unique.", value)

    def _known(self, name: str, kind: str, value: str) -> None:
        known, where = {
            "query-id": (self._queries, "queries"),
            "corpus-id": (self._documents, "corpus"),
        }[kind]
        if value not in known:
            raise self._fault(name, f"{kind} must be an id of the {where} file.", value)

    def _encoded(self, name: str, record: Mapping[str, object]) -> bytes:
        try:
            return json_line(record)
        except UnicodeEncodeError as error:
            rule = "must be Unicode text (half a surrogate pair)."
            raise self._fault(name, rule, record) from error
        except TypeError as error:
            raise self._fault(name, f"must be JSON ({error}).", record) from error

    def _line(self, name: str, line: bytes) -> None:
        self.file(name).write(line)
        self._lines[name] += 1

    def _fault(self, name: str, rule: str, value: object) -> DataError:
        if self.intake.path is not None:
            return DataError(self.intake.path, self.intake.line, rule, value)
        header = name.startswith("qrels/") and name not in self._files
        return DataError(self._target / name, self._lines[name] + 1 + header, rule, value)


def write_dataset_directory(
    path: str | Path,
    documents: Iterable[Document],
    queries: Iterable[Query],
    qrels: Mapping[str, Qrels],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a dataset directory; `write_dataset` for what is at hand as texts and judgements.

    Args:
        path: The directory; `corpus.jsonl.gz`, `queries.jsonl.gz` and `qrels/SPLIT.tsv` in it.
        documents: The corpus.
        queries: The queries of all splits.
        qrels: The judgements by split.
        overwrite: Whether a directory that holds something is replaced.

    Raises:
        ConfigError: `path` is a file, or a directory that is not empty without `overwrite`.
        DataError: as `write_dataset`; nothing is left behind.
    """
    records: itertools.chain[Record] = itertools.chain(
        documents,
        queries,
        (
            Judgement(split, query_id, doc_id, relevance)
            for split, by_query in qrels.items()
            for query_id, judged in by_query.items()
            for doc_id, relevance in judged.items()
        ),
    )
    write_dataset(path, records, splits=qrels, overwrite=overwrite)
