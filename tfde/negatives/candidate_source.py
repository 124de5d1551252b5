"""What mining asks of whoever ranks documents for queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.types import Document, Query

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
