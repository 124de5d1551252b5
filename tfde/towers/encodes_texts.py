"""`encode_queries` and `encode_documents`: texts as people have them, to whatever embeds rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.config.engines import Use
from tfde.towers.other_words import takes_words_of_encode
from tfde.towers.texts import elements_of, query_text, texts_of_document
from tfde.types import Document, Query


class EncodesTexts:
    """Base of models that embed queries and documents."""

    @property
    def needs_context(self) -> bool:
        """Whether a document without a context is refused, where the model reads it at all."""
        return True

    @property
    @abstractmethod
    def document_fields(self) -> tuple[str, ...]:
        """What the model reads of a document: `title` and `text`, perhaps `context`."""

    @abstractmethod
    def _embeddings_of(
        self,
        side: Use,
        rows: Sequence[tuple[str, ...]],
        *,
        batch_size: int,
        max_length_tokens: int | None,
        show_progress: bool,
    ) -> np.ndarray:
        """Returns (N, D) float32; `side` is `query` or `document`.

        A row holds a text, of documents their fields.
        """

    @takes_words_of_encode("query")
    @typed
    def encode_queries(
        self,
        texts: str | Query | Iterable[str | Query],
        *,
        batch_size: int = 64,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the embeddings of queries, (Q, D) float32, in the order given.

        Args:
            texts: Query texts or `tfde.Query`s: a list, an array, a pandas column, a generator, a
                `tf.data.Dataset` of strings. Of one text alone the embedding is (D,).
            batch_size: Texts per batch; those of like length share one.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: an entry is no text; or an argument of sentence-transformers' `encode`
                asks for what is done elsewhere.
        """
        found, alone = elements_of("texts", texts, alone=(Query,))
        rows = [(query_text(text),) for text in found]
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
        embeddings = self._embeddings_of("query", rows, max_length_tokens=None, **options)
        return _only(embeddings) if alone else embeddings

    @takes_words_of_encode("document")
    @typed
    def encode_documents(
        self,
        documents: Document
        | Mapping[str, str]
        | str
        | Iterable[Document | Mapping[str, str] | str],
        *,
        batch_size: int = 64,
        max_length_tokens: int | None = None,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the embeddings of documents, (N, D) float32, in the order given.

        Args:
            documents: `tfde.Document`s, mappings with `text` (and `title`, and a `context` where
                the template has it), or plain texts, in whatever `encode_queries` takes; of one
                alone the embedding is (D,).
            batch_size: Documents per batch; those of like length share one.
            max_length_tokens: Longest document, in place of the model's own length.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: as of `encode_queries`, or a length that the model cannot have.
        """
        found, alone = elements_of("documents", documents, alone=(Document, Mapping))
        fields, strict = self.document_fields, self.needs_context
        rows = [texts_of_document(document, fields, strict=strict) for document in found]
        embeddings = self._embeddings_of(
            "document",
            rows,
            batch_size=batch_size,
            max_length_tokens=max_length_tokens,
            show_progress=show_progress,
        )
        return _only(embeddings) if alone else embeddings

    encode_query, encode_document = encode_queries, encode_documents  # as elsewhere


def _only(embeddings: np.ndarray) -> np.ndarray:
    embedding: np.ndarray = embeddings[0]
    return embedding
