"""Candidates that somebody else retrieved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.data.files import sha256
from tfde.data.ranking import first_documents
from tfde.negatives.candidate_source import Ranking
from tfde.retrieval.runs import read_run
from tfde.types import Document, Query, Run


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
