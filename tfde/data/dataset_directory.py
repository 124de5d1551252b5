"""The dataset directory (BEIR's layout): corpus, queries and judgements by split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tfde.data.atomic import atomic_directory
from tfde.data.ids import SeenIds
from tfde.data.json_lines import (
    id_field,
    read_json_lines,
    read_lines,
    string_field,
    write_json_lines,
)
from tfde.data.qrels import read_qrels, write_qrels
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Qrels, Query

Record = TypeVar("Record", Document, Query)

_ORDER = {"train": 0, "dev": 1, "test": 2}


class DatasetDirectory:
    """A directory with `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`, each also `.gz`.

    Records are streamed: nothing of the corpus stays in memory unless `document_store` is asked
    for. Every bad record raises an error that names file, line, rule and value.

    Args:
        path: The directory.

    Raises:
        ConfigError: the directory or its corpus is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigError(
                f"{self.path}: a dataset directory (corpus.jsonl[.gz], queries.jsonl[.gz],"
                " qrels/SPLIT.tsv[.gz]) must stand here; there is no such directory."
            )
        self._file("corpus.jsonl")

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that have judgements: train, dev, test first, then others by name."""
        names = {
            path.name.removesuffix(".gz").removesuffix(".tsv")
            for pattern in ("qrels/*.tsv", "qrels/*.tsv.gz")
            for path in self.path.glob(pattern)
        }
        return tuple(sorted(names, key=lambda name: (_ORDER.get(name, 3), name)))

    @cached_property
    def num_documents(self) -> int:
        """How many documents the corpus holds (counted once, lines are not parsed)."""
        return sum(1 for _ in read_lines(self._file("corpus.jsonl")))

    @cached_property
    def num_queries(self) -> int:
        """How many queries there are in all splits together."""
        return sum(1 for _ in read_lines(self._file("queries.jsonl")))

    def documents(self) -> Iterator[Document]:
        """Streams the corpus in file order.

        Raises:
            DataError: not JSON, a missing field, a wrong type, an empty text, an id with white
                space, a duplicate id (found after at most twice as many records, or at the end).
        """
        path = self._file("corpus.jsonl")

        def document(line: int, record: dict[str, Any]) -> Document:
            return Document(
                id_field(path, line, record, "_id"),
                string_field(path, line, record, "title", optional=True),
                string_field(path, line, record, "text"),
            )

        return _stream(path, document)

    def queries(self, split: str | None = None) -> Iterator[Query]:
        """Streams the queries in file order; with `split` only those judged in it.

        Raises:
            ConfigError: there is no such split.
            DataError: as `documents`; or the split judges a query that does not exist.
        """
        judged = None if split is None else set(self.qrels(split))
        return self._queries(split, judged)

    def _queries(self, split: str | None, judged: set[str] | None) -> Iterator[Query]:
        path = self._file("queries.jsonl")

        def query(line: int, record: dict[str, Any]) -> Query:
            return Query(
                id_field(path, line, record, "_id"), string_field(path, line, record, "text")
            )

        found = set()
        for record in _stream(path, query):
            if judged is None:
                yield record
            elif record.query_id in judged:
                found.add(record.query_id)
                yield record
        if judged is not None and split is not None and len(found) < len(judged):
            read_qrels(self.qrels_file(split), query_ids=found)  # names the line

    def qrels(self, split: str) -> Qrels:
        """Returns the judgements of a split, `{query_id: {doc_id: relevance}}`.

        Whether the ids exist is checked by `validate`.

        Raises:
            ConfigError: there is no such split.
            DataError: a line breaks a rule of the format.
        """
        return read_qrels(self.qrels_file(split))

    def document_store(self, doc_ids: Collection[str] | None = None) -> dict[str, Document]:
        """Returns documents by id, in memory: those asked for that exist, or all."""
        wanted = None if doc_ids is None else set(doc_ids)
        return {
            document.doc_id: document
            for document in self.documents()
            if wanted is None or document.doc_id in wanted
        }

    def validate(self, splits: Iterable[str] | None = None) -> None:
        """Reads every record once and checks that all judged ids exist.

        Args:
            splits: The splits to check; `None` checks all.

        Raises:
            DataError: the first record that breaks a rule, or judgement of an unknown id.
        """
        doc_ids = {document.doc_id for document in self.documents()}
        query_ids = {query.query_id for query in self.queries()}
        for split in self.splits if splits is None else splits:
            read_qrels(self.qrels_file(split), query_ids=query_ids, doc_ids=doc_ids)

    def checksums(self) -> dict[str, str]:
        """Returns the sha256 (hexadecimal) of every file, by its path inside the directory."""
        files = [self._file("corpus.jsonl"), self._file("queries.jsonl")]
        files += [self.qrels_file(split) for split in self.splits]
        sums = {}
        for path in files:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            sums[path.relative_to(self.path).as_posix()] = digest
        return sums

    def _file(self, name: str) -> Path:
        for path in (self.path / name, self.path / f"{name}.gz"):
            if path.is_file():
                return path
        raise ConfigError(f"{self.path}: a dataset directory must hold {name} or {name}.gz.")

    def qrels_file(self, split: str) -> Path:
        """Returns the path of the judgements of a split; raises ConfigError if there are none."""
        if split not in self.splits:
            there = ", ".join(self.splits) or "none (no qrels/SPLIT.tsv)"
            raise ConfigError(
                f"{self.path}: `split` must be one of its splits: {there}. Received: {split!r}"
            )
        return self._file(f"qrels/{split}.tsv")


def write_dataset_directory(
    path: str | Path,
    documents: Iterable[Document],
    queries: Iterable[Query],
    qrels: Mapping[str, Qrels],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a dataset directory, streamed; it appears whole or not at all.

    Args:
        path: The directory; `corpus.jsonl.gz`, `queries.jsonl.gz` and `qrels/SPLIT.tsv` in it.
        documents: The corpus.
        queries: The queries of all splits.
        qrels: The judgements by split.
        overwrite: Whether a directory that holds something is replaced.

    Raises:
        ConfigError: `path` is a file, or a directory that is not empty without `overwrite`.
        DataError: what was written breaks a rule of the format (an id twice, an unknown id ...);
            nothing is left behind.
    """
    with atomic_directory(path, overwrite=overwrite) as temporary:
        write_json_lines(
            temporary / "corpus.jsonl.gz",
            ({"_id": d.doc_id, "title": d.title, "text": d.text} for d in documents),
        )
        write_json_lines(
            temporary / "queries.jsonl.gz", ({"_id": q.query_id, "text": q.text} for q in queries)
        )
        for split, judged in qrels.items():
            write_qrels(temporary / "qrels" / f"{split}.tsv", judged)
        try:
            DatasetDirectory(temporary).validate()
        except DataError as error:
            place = Path(path) / Path(error.path).relative_to(temporary)
            raise DataError(place, error.line, error.rule, error.value) from error


def _stream(path: Path, make: Callable[[int, dict[str, Any]], Record]) -> Iterator[Record]:
    seen = SeenIds()
    for line, record in read_json_lines(path):
        item = make(line, record)
        if seen.add(item[0]):
            _name_duplicate(path)
        yield item
    if seen.has_duplicate():
        _name_duplicate(path)


def _name_duplicate(path: Path) -> None:
    first: dict[str, int] = {}
    for line, record in read_json_lines(path):
        if first.setdefault(record["_id"], line) != line:
            rule = f"field '_id' must be unique; line {first[record['_id']]} has it too."
            raise DataError(path, line, rule, record["_id"])
