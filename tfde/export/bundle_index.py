"""The index that a bundle is made with: that of the model, its documents and vectors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tfde.data.metadata import metadata_json
from tfde.errors import ConfigError, MismatchError, require
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.index import Index
from tfde.retrieval.scann_index import ScannIndex
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document


def check_index(
    model: DualEncoder | SavedEncoder, index: Index | Embeddings, fingerprint: str
) -> None:
    """Raises a `MismatchError` for an index that another model made.

    Args:
        model: What is exported.
        index: Its index.
        fingerprint: Of the model.
    """
    if index.fingerprint != fingerprint:
        raise MismatchError(
            f"the index or embeddings must be of this model ({fingerprint}): encode the corpus"
            " with it again, in Python with its fingerprint."
            f" Received: fingerprint {index.fingerprint!r}"
        )
    if index.shape[1] != model.embedding_dim:
        raise MismatchError(
            f"`index` must hold vectors of {model.embedding_dim} dimensions, the model's."
            f" Received: {index.shape[1]}"
        )


def documents_of(index: Index | Embeddings, documents: Iterable[Document]) -> list[Document]:
    """Returns the index's documents, in its order.

    Raises:
        ConfigError: an id stands for two documents; metadata that JSON cannot write.
        MismatchError: a document of the index is not among `documents`.
    """
    doc_ids = list(index.doc_ids)
    wanted = set(doc_ids)
    chosen: dict[str, Document] = {}
    for document in documents:
        require(isinstance(document, Document), "documents", "tfde.Document", document)
        if document.doc_id in wanted:
            same = chosen.setdefault(document.doc_id, document) == document
            require(same, "documents", "one document an id", f"{document.doc_id!r} twice")
            try:
                metadata_json(document.metadata)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"`documents` must have metadata that JSON can write. Received: {error}, of"
                    f" {document.doc_id!r}"
                ) from error
    missing = next((doc_id for doc_id in doc_ids if doc_id not in chosen), None)
    if missing is not None:
        raise MismatchError(
            f"`documents` must hold every document of the index; {len(wanted) - len(chosen)}"
            f" are missing. Received: none with id {missing!r}"
        )
    return [chosen[doc_id] for doc_id in doc_ids]


def vectors_of(index: Index | Embeddings) -> np.ndarray:
    """Returns the embeddings of an index, (N, D)."""
    return index.read() if isinstance(index, Embeddings) else index.vectors()


def scann_index(index: Index | Embeddings, vectors: np.ndarray) -> ScannIndex:
    """Returns the index, or one that ScaNN makes of its embeddings."""
    if isinstance(index, ScannIndex):
        return index
    return ScannIndex.build(vectors, list(index.doc_ids), fingerprint=index.fingerprint)
