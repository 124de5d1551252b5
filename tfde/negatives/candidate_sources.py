"""Who ranks documents for queries, for mining: BM25, chance, a run, a model.

A source is built of what ranks and of options by keyword, and refuses impossible ones at once;
what is dear waits for `prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.data.ids import generator_of
from tfde.data.ranking import first_documents
from tfde.errors import DataError
from tfde.retrieval.bm25_index import Bm25Index, check_bm25
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.base_indexes import index_version
from tfde.retrieval.live.load_index import load_index
from tfde.retrieval.retrieve import DualEncoderLike, check_fingerprints
from tfde.retrieval.runs import read_run
from tfde.retrieval.scann_index import ScannIndex
from tfde.storage.files import sha256
from tfde.types import Document, Query, Run

# Documents of one query with their scores, best first.
Ranking = list[tuple[str, float]]

Part = TypeVar("Part")


class Corpus(NamedTuple):
    """What is ranked, and where that may be worked on.

    `documents` are those of `dataset` by id; `work` is a directory for what is dear to make, which
    is there again after a kill; `show_progress` says whether progress bars go to stderr.
    """

    dataset: DatasetDirectory
    documents: DocumentFile
    work: Path
    show_progress: bool


class CandidateSource(Protocol):
    """A ranking of documents for any query."""

    @property
    def has_scores(self) -> bool:
        """Whether the scores mean anything."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what the rankings depend on, as JSON; mining resumes only with an equal one."""
        ...

    def prepare(self, corpus: Corpus) -> None:
        """Gets ready to answer for the documents of a corpus."""
        ...

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns at most `k` documents of each query, best first."""
        ...

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the scores that the documents have for the queries; `None` where unknown."""
        ...


class Bm25Candidates:
    """Ranks by BM25 over title and text.

    Args:
        k1: As `Bm25Index.build`.
        b: As `Bm25Index.build`.
        language: As `Bm25Index.build`.

    Raises:
        ConfigError: an impossible value.
    """

    has_scores = True

    def __init__(
        self, *, k1: float = 0.9, b: float = 0.4, language: str | None = "english"
    ) -> None:
        check_bm25(k1, b, language)
        self._options: dict[str, Any] = {"k1": k1, "b": b, "language": language}
        self._index: Bm25Index | None = None

    def describe(self) -> dict[str, Any]:
        """Returns the parameters."""
        return {"kind": "bm25", **self._options}

    def prepare(self, corpus: Corpus) -> None:
        """Indexes the corpus."""
        self._index = Bm25Index.build(corpus.dataset.documents(), **self._options)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns at most `k` documents that share a word with each query."""
        return _prepared(self._index).search([query.text for query in queries], k)

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the scores, 0 where query and document share no word."""
        asked = [(query.text, document.doc_id) for query, document in pairs]
        found = _prepared(self._index).score(asked)
        return list(found)


class RandomCandidates:
    """Draws documents uniformly, each query's by seed and query id.

    Args:
        seed: At least 0.
    """

    has_scores = False

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._documents: DocumentFile | None = None

    def describe(self) -> dict[str, Any]:
        """Returns the seed."""
        return {"kind": "random", "seed": self._seed}

    def prepare(self, corpus: Corpus) -> None:
        """Keeps the documents."""
        self._documents = corpus.documents

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns `k` documents of each query, in random order, all with score 0."""
        documents = _prepared(self._documents)
        size = len(documents)
        rankings = []
        for query in queries:
            generator = generator_of(self._seed, "candidates", query.query_id)
            positions = generator.choice(size, min(k, size), replace=False)
            rankings.append([(documents.at(int(p)).doc_id, 0.0) for p in positions])
        return rankings

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns `None`: there are no scores."""
        return [None] * len(pairs)


class RunCandidates:
    """Ranks as a TREC run does: by score, equal ones in trec_eval's order.

    Args:
        path: The run, plain or packed.
        run: What of it is known; `None` reads it whole.

    Raises:
        DataError: the file breaks a rule of the format.
    """

    has_scores = True

    def __init__(self, path: str | Path, *, run: Run | None = None) -> None:
        self._path = Path(path)
        self._run = read_run(path) if run is None else run

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._run

    def describe(self) -> dict[str, Any]:
        """Returns the checksum of the run."""
        return {"kind": "run", "sha256": sha256(self._path)}

    def prepare(self, corpus: Corpus) -> None:
        """Looks whether the run is of this corpus.

        Raises:
            DataError: it has a document that is none of the dataset.
        """
        queries = {doc_id: query_id for query_id, found in self._run.items() for doc_id in found}
        for doc_id, query_id in queries.items():  # each looked up once
            if doc_id not in corpus.documents:
                rule = f"a candidate must be a document of the dataset (query {query_id})."
                raise DataError(self._path, None, rule, doc_id)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns the first `k` documents of each query; none where the run has none."""
        found = (self._run.get(query.query_id, {}) for query in queries)
        return [list(first_documents(results, k).items()) for results in found]

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the scores in the run."""
        return [self._run.get(query.query_id, {}).get(document.doc_id) for query, document in pairs]


class ModelCandidates:
    """Ranks by the embeddings of a model.

    Args:
        model: A `tfde.DualEncoder`.
        index: Directory of an index of the same model; `None` encodes the corpus into the working
            directory of the mining, resumable by shards, and searches it exactly.
        batch_size: Texts a batch.
        scann_from: Without an index, corpora of so many documents are searched with ScaNN.

    Raises:
        FileNotFoundError: no index there.
    """

    has_scores = True

    def __init__(
        self,
        model: DualEncoderLike,
        *,
        index: str | Path | None = None,
        batch_size: int = 64,
        scann_from: int | None = None,
    ) -> None:
        self._model = model
        self._path = None if index is None else Path(index)
        self._batch_size = batch_size
        self._scann_from = scann_from
        self._index: Any = None  # an `Index` or a `LiveIndex`
        if self._path is not None:
            index_version(self._path)

    def describe(self) -> dict[str, Any]:
        """Returns the model's fingerprint and the version of the index."""
        index = "exact" if self._scann_from is None else f"ScaNN from {self._scann_from}"
        if self._path is not None:
            index = index_version(self._path)
        return {"kind": "model", "model": self._model.fingerprint(), "index": index}

    def prepare(self, corpus: Corpus) -> None:
        """Opens the index, or encodes the corpus.

        Raises:
            MismatchError: the index was made with another model.
            CorruptError: a file of the index differs from what was written.
        """
        if self._path is not None:
            self._index = load_index(self._path)
            check_fingerprints(self._model, self._index)
            return
        embeddings = encode_corpus(
            self._model,
            corpus.dataset.documents(),
            corpus.work / "embeddings",
            batch_size=self._batch_size,
            total=len(corpus.documents),
            show_progress=corpus.show_progress,
        )
        if self._scann_from is None or len(corpus.documents) < self._scann_from:
            self._index = ExactIndex.from_embeddings(embeddings)
            return
        index = corpus.work / "index"
        if not index.exists():  # kept: one that is built again may find others
            ScannIndex.from_embeddings(embeddings).save(index)
        self._index = load_index(index)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns the `k` best documents of each query."""
        index = _prepared(self._index)
        # Not `retrieve`, which would look at all weights again for every part of the queries.
        texts = [query.text for query in queries]
        embeddings = self._model.encode_queries(texts, batch_size=self._batch_size)
        found = zip(*index.search(embeddings, k), strict=True)
        return [list(zip(ids, map(float, scores), strict=True)) for scores, ids in found]

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the similarities of queries and documents, on the scale of `search`.

        Documents that have a share of their parents in the index are compared as they are there.
        """
        if not pairs:
            return []
        size = self._batch_size
        texts = [query.text for query, _ in pairs]
        queries = self._model.encode_queries(texts, batch_size=size)
        if self._index is not None and self._index.parents is not None:
            rows, vectors = self._indexed
            return [
                float(query @ vectors[rows[document.doc_id]]) if document.doc_id in rows else None
                for query, (_, document) in zip(queries, pairs, strict=True)
            ]
        documents = self._model.encode_documents([d for _, d in pairs], batch_size=size)
        return [float(value) for value in np.sum(queries * documents, axis=1)]

    @cached_property
    def _indexed(self) -> tuple[dict[str, int], np.ndarray]:
        """Rows of the index by document, and its vectors."""
        index = _prepared(self._index)
        return {doc_id: row for row, doc_id in enumerate(index.doc_ids)}, index.vectors()


def _prepared(part: Part | None) -> Part:
    if part is None:
        raise RuntimeError("`prepare` must be called first.")
    return part
