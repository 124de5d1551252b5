"""Documents that take a share of their parents along: of the pages or paragraphs they are cut from.

A sentence says "he" where its paragraph says who. A score is an inner product and so linear: with
the sum of two vectors a search gives the score of the document plus that of its parent, by one
vector a document and at no cost in searching.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from tfde.config.model import ParentConfig
from tfde.data.ids import parent_of
from tfde.errors import ConfigError, naming, shorten
from tfde.types import CONTEXT, Document


class DocumentInParent(Document):
    """A document that has the text of its parent beside its own."""

    parent_text: str = ""


class ParentModel(Protocol):
    """What is asked of the model; `tfde.DualEncoder` has it."""

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        ...

    def fingerprint(self) -> str:
        """Returns what changes with the model."""
        ...

    def encode_documents(
        self,
        documents: Iterable[Document | Mapping[str, str] | str],
        *,
        batch_size: int,
        max_length_tokens: int | None = None,
    ) -> np.ndarray:
        """Returns `(N, D)` float32 in the order given."""
        ...


class ParentEncoder:
    """A `DocumentEncoder` of what `in_parents` yields.

    Args:
        model: Encodes documents and parents.
        config: How much of the parents, and how they are told from ids.

    Raises:
        ConfigError: parents longer than the model can read.
    """

    def __init__(self, model: ParentModel, config: ParentConfig) -> None:
        self._model = model
        self._config = config
        with naming("parents.max_length_tokens"):  # before anything is written
            self._encode_parents([], batch_size=1)

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return self._model.embedding_dim

    def fingerprint(self) -> str:
        """Returns that of the model, for its queries are what the embeddings go with."""
        return self._model.fingerprint()

    def encode_documents(self, documents: Sequence[Document], *, batch_size: int) -> np.ndarray:
        """Returns each document's embedding plus its parent's share, (N, D) float32.

        A parent is encoded once, under its documents' title. The sums have no unit length: what
        parent and document agree on weighs more.

        Args:
            documents: Of `in_parents`, in its order, so that a parent is met once.
            batch_size: Texts a batch.
        """
        embeddings = self._model.encode_documents(documents, batch_size=batch_size)
        rows: dict[tuple[str, str], int] = {}
        of_documents = [
            rows.setdefault((document.title, document.parent_text), len(rows))
            for document in cast(Sequence[DocumentInParent], documents)
        ]
        parents = self._encode_parents(rows, batch_size=batch_size)
        sums: np.ndarray = embeddings + np.float32(self._config.weight) * parents[of_documents]
        return sums

    def _encode_parents(
        self, titles_and_texts: Iterable[tuple[str, str]], *, batch_size: int
    ) -> np.ndarray:
        return self._model.encode_documents(
            # A parent is no part of anything.
            [{"title": title, "text": text, CONTEXT: ""} for title, text in titles_and_texts],
            batch_size=batch_size,
            max_length_tokens=self._config.max_length_tokens,
        )


def in_parents(documents: Iterable[Document], separator: str) -> Iterator[DocumentInParent]:
    """Yields every document with the texts of all documents of its parent, in their order.

    Args:
        documents: A corpus in which the documents of a parent follow one another.
        separator: What stands in an id between the parent's and the rest, at its last place.

    Raises:
        ConfigError: an id without a parent's, or a parent that comes again after another.
    """
    seen = set()
    for parent_id, group in itertools.groupby(documents, lambda d: parent_of(d.doc_id, separator)):
        if parent_id in seen:
            raise ConfigError(
                "documents of one parent must follow one another to have a share of it."
                f" Received: {shorten(parent_id)} again after another"
            )
        seen.add(parent_id)
        parts = list(group)
        text = " ".join(part.text for part in parts)
        for part in map(DocumentInParent._make, parts):
            part.parent_text = text
            yield part
