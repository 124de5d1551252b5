"""Candidates drawn from the whole corpus: what any other source has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.negatives.candidate_source import Ranking
from tfde.negatives.choice import generator_of
from tfde.types import Document, Query


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
