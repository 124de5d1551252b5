"""Candidates that share words with the query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.negatives.candidate_source import Ranking
from tfde.retrieval.bm25_index import Bm25Index, check_bm25
from tfde.types import Document, Query


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
