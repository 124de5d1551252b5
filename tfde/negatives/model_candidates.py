"""Candidates that a dual encoder takes for relevant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.negatives.candidate_source import Ranking
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.index import Index
from tfde.retrieval.live.base_indexes import index_version
from tfde.retrieval.live.live_index import LiveIndex, load_index
from tfde.retrieval.retrieve import DualEncoderLike, check_fingerprints
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document, Query


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
        index: str | Path | None = None,
        *,
        batch_size: int = 64,
        scann_from: int | None = None,
    ) -> None:
        self._model = model
        self._path = None if index is None else Path(index)
        self._batch_size = batch_size
        self._scann_from = scann_from
        self._index: Index | LiveIndex | None = None
        if self._path is not None:
            index_version(self._path)

    def describe(self) -> dict[str, Any]:
        """Returns the model's fingerprint and the version of the index."""
        index = "exact" if self._scann_from is None else f"ScaNN from {self._scann_from}"
        if self._path is not None:
            index = index_version(self._path)
        return {"kind": "model", "model": self._model.fingerprint(), "index": index}

    def prepare(
        self,
        dataset: DatasetDirectory,
        documents: DocumentFile,
        work: Path,
        *,
        show_progress: bool,
    ) -> None:
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
            dataset.documents(),
            work / "embeddings",
            batch_size=self._batch_size,
            total=len(documents),
            show_progress=show_progress,
        )
        if self._scann_from is None or len(documents) < self._scann_from:
            self._index = ExactIndex.from_embeddings(embeddings)
            return
        index = work / "index"
        if not index.exists():  # kept: one that is built again may find others
            ScannIndex.from_embeddings(embeddings).save(index)
        self._index = load_index(index)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Returns the `k` best documents of each query."""
        index = self._opened()
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
        index = self._opened()
        return {doc_id: row for row, doc_id in enumerate(index.doc_ids)}, index.vectors()

    def _opened(self) -> Index | LiveIndex:
        if self._index is None:
            raise RuntimeError("`prepare` must be called first.")
        return self._index
