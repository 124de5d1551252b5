"""Search in an index that changes while it is searched."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np

from tfde.errors import ConfigError, DataError, MismatchError
from tfde.retrieval.live.live_index import Deletion, LiveIndex
from tfde.retrieval.live.status import LiveStatus
from tfde.serving.application.search_service import (
    DOCUMENT_ENCODER,
    DOCUMENTS,
    QUERY_ENCODER,
    Found,
    SearchService,
    check_size,
    find_passages,
    reads_context,
    run_in_parts,
    run_while_awaited,
)
from tfde.serving.hit import Passage, make_hits
from tfde.serving.server.calls import current_call
from tfde.serving.server.request_size import check_text_count, encoded_texts
from tfde.serving.server.service import InferenceService
from tfde.storage.files import check_id
from tfde.types import CONTEXT, Document


class LiveSearchService(SearchService):
    """Searches an index directory with the towers of a bundle, and changes it.

    The towers are always those of one version: others than the index's would find nothing.

    Args:
        service: Runs the towers.
        index: The index, open for writing if it will be changed.
        fingerprint: Of the towers.
        version: Of the models that hold them.
        needs_context: Whether a document without a context is refused, where the model reads it.

    Raises:
        MismatchError: the index was made by another model.
    """

    def __init__(
        self,
        service: InferenceService,
        index: LiveIndex,
        *,
        fingerprint: str,
        version: int,
        needs_context: bool = True,
    ) -> None:
        super().__init__(service, QUERY_ENCODER)
        if index.fingerprint != fingerprint:
            raise MismatchError(
                f"{index.path}: must be made by the bundle's model ({fingerprint})."
                f" Received: fingerprint {index.fingerprint!r}"
            )
        self._fingerprint = fingerprint
        self._bundle_version = version
        self._needs_context = needs_context
        self._index = index
        self._starting = threading.Lock()
        self._compaction: threading.Thread | None = None
        self._compaction_error = ""

    def search(self, queries: Sequence[str], k: int) -> Found:
        """Finds the best documents that are there now for each query.

        Raises:
            StatusError: the query tower is not there, or refuses.
        """
        current_call().check()
        check_size(queries, k)
        texts = encoded_texts("query", queries, self.limits)
        with self._using([QUERY_ENCODER, DOCUMENTS], "Search") as servables:
            encode = partial(run_while_awaited, servables[QUERY_ENCODER], "")
            embeddings = run_in_parts(encode, {"text": texts})["embeddings"]
            found = self._index.search_documents(embeddings, k)
            unchanged = set(found.doc_ids.ravel().tolist()) - found.documents.keys()
            passages = find_passages(unchanged, servables.get(DOCUMENTS))
        for document in found.documents.values():
            metadata = dict(document.metadata) if document.metadata else None
            passages[document.doc_id] = Passage(document.title, document.text, metadata)
        hits = make_hits(found.doc_ids.tolist(), found.scores.tolist(), passages)
        return Found(hits, self._bundle_version, found.version)

    def add(self, documents: Sequence[Document]) -> int:
        """Encodes documents and inserts them, or replaces those with the same ids.

        Returns:
            The number of the last change, which is on the disk.

        Raises:
            StatusError: the document tower is not there, or refuses; a text is too long or cannot
                be written in UTF-8; the client has left before anything was changed.
            ConfigError: the index has shares of parents, which the bundle's tower knows nothing of.
            ConfigError, DataError, OSError: as `LiveIndex.add`.
        """
        if self._index.parents is not None:
            raise ConfigError(
                "documents of this index have a share of their parents' embeddings, which this call"
                " cannot give: use `tfde index add` while no server writes to it."
            )
        for number, document in enumerate(documents, start=1):
            check_id(document.doc_id, "documents", number)  # before the tower works for them
        with self._using([DOCUMENT_ENCODER], "Search") as servables:
            servable = servables[DOCUMENT_ENCODER]
            names = ("title", "text", *([CONTEXT] if reads_context(servable) else []))
            texts = {name: self._column(name, documents) for name in names}
            run = partial(run_while_awaited, servable, "")
            embeddings = run_in_parts(run, texts)["embeddings"]
        current_call().check()
        return self._index.add(documents, embeddings, fingerprint=self._fingerprint)

    def delete(self, doc_ids: Sequence[str]) -> Deletion:
        """Deletes documents.

        Raises:
            StatusError: more ids than a request may have.
            ConfigError, DataError, OSError: as `LiveIndex.delete`.
        """
        check_text_count("ids", len(doc_ids), self.limits)
        return self._index.delete(doc_ids)

    def start_compaction(self) -> bool:
        """Begins a compaction in a thread of its own; returns whether none was under way."""
        with self._starting:
            if self.compacting:
                return False
            self._compaction = threading.Thread(target=self._compact, name="compact", daemon=True)
            self._compaction.start()
            return True

    @property
    def compacting(self) -> bool:
        """Whether a compaction is under way."""
        return self._compaction is not None and self._compaction.is_alive()

    def status(self) -> tuple[LiveStatus, str]:
        """Returns the sizes of the index, and why the last compaction failed ("": it did not)."""
        return self._index.status(), self._compaction_error

    def close(self, timeout_s: float) -> bool:
        """Waits for a compaction under way and ends writing; returns whether that ended in time."""
        if self._compaction is not None:
            self._compaction.join(timeout_s)
            if self._compaction.is_alive():
                return False
        self._index.close()
        return True

    def _column(self, name: str, documents: Sequence[Document]) -> np.ndarray:
        texts = [getattr(document, name) for document in documents]
        if name == CONTEXT and not self._needs_context:
            texts = ["" if text is None else text for text in texts]
        for number, text in enumerate(texts, start=1):
            if name == CONTEXT and not isinstance(text, str):
                rule = "a document must have a context, a text, for the model reads it."
                raise DataError("documents", number, rule, text)
        return encoded_texts(name, texts, self.limits)

    def _compact(self) -> None:
        try:
            self._index.compact()
            self._compaction_error = ""
        except Exception as error:  # told by `status`; the index is as it was
            self._compaction_error = f"{type(error).__name__}: {error}"
