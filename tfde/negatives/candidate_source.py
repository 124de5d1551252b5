"""What mining asks of whoever ranks documents for queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.data.ranking import first_documents
from tfde.negatives.choice import generator_of
from tfde.retrieval.bm25_index import Bm25Index, check_bm25
from tfde.retrieval.runs import read_run
from tfde.storage.files import sha256
from tfde.types import Document, Query, Run

# Documents of one query with their scores, best first.
Ranking = list[tuple[str, float]]


class CandidateSource(Protocol):
    """A ranking of documents for any query."""

    @property
    def has_scores(self) -> bool:
        """Whether the scores mean anything."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what the rankings depend on, as JSON; mining resumes only with an equal one."""
        ...

    def prepare(
        self,
        dataset: DatasetDirectory,
        documents: DocumentFile,
        work: Path,
        *,
        show_progress: bool,
    ) -> None:
        """Gets ready to answer.

        Args:
            dataset: Whose documents are ranked.
            documents: The same documents by id.
            work: A directory for what is dear to make; it is there again after a kill.
            show_progress: Whether progress bars go to stderr.
        """
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

    def prepare(
        self,
        dataset: DatasetDirectory,
        documents: DocumentFile,
        work: Path,
        *,
        show_progress: bool,
    ) -> None:
        """Indexes the corpus."""
        self._index = Bm25Index.build(dataset.documents(), **self._options)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns at most `k` documents that share a word with each query."""
        return self._prepared().search([query.text for query in queries], k)

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the scores, 0 where query and document share no word."""
        found = self._prepared().score([(query.text, document.doc_id) for query, document in pairs])
        return list(found)

    def _prepared(self) -> Bm25Index:
        if self._index is None:
            raise RuntimeError("`prepare` must be called first.")
        return self._index


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

    def prepare(
        self,
        dataset: DatasetDirectory,
        documents: DocumentFile,
        work: Path,
        *,
        show_progress: bool,
    ) -> None:
        """Keeps the documents."""
        self._documents = documents

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns `k` documents of each query, in random order, all with score 0."""
        documents = self._documents
        if documents is None:
            raise RuntimeError("`prepare` must be called first.")
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

    def __init__(self, path: str | Path, run: Run | None = None) -> None:
        self._path = Path(path)
        self._run = read_run(path) if run is None else run

    def describe(self) -> dict[str, Any]:
        """Returns the checksum of the run."""
        return {"kind": "run", "sha256": sha256(self._path)}

    def prepare(
        self,
        dataset: DatasetDirectory,
        documents: DocumentFile,
        work: Path,
        *,
        show_progress: bool,
    ) -> None:
        """Needs nothing."""

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns the first `k` documents of each query; none where the run has none."""
        found = (self._run.get(query.query_id, {}) for query in queries)
        return [list(first_documents(results, k).items()) for results in found]

    def score(self, pairs: Sequence[tuple[Query, Document]]) -> list[float | None]:
        """Returns the scores in the run."""
        return [self._run.get(query.query_id, {}).get(document.doc_id) for query, document in pairs]
