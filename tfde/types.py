"""Small typed records that pass between the parts (TREC's field names)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CONTEXT = "context"
Metadata = Mapping[str, Any]  # name -> what JSON can hold


class Query(NamedTuple):
    """A query: its id, its text, and what else is known of it (`None`: nothing)."""

    query_id: str
    text: str
    metadata: Metadata | None = None


class Document(NamedTuple):
    """A document: its id, its title and text (may be empty), and what else is known of it.

    `metadata` goes wherever the document goes and comes back with what is found. `None` is nothing.
    Of it models read the `context` alone, those whose template names it.
    """

    doc_id: str
    title: str
    text: str
    metadata: Metadata | None = None

    @property
    def context(self) -> Any:
        """What the text is a part of, such as a sentence's passage; `None` where nobody says."""
        return None if self.metadata is None else self.metadata.get(CONTEXT)


class Qrel(NamedTuple):
    """A judgement: how relevant a document is to a query (0 = not relevant)."""

    query_id: str
    doc_id: str
    relevance: int


class Pair(NamedTuple):
    """A training example: a query, one positive document, given hard negatives.

    `positive_doc_ids` lists every document known to be relevant to the query, the positive
    included; none of them may stand as a negative of this query. `margins` are how much more a
    teacher gives to the positive than to each negative; empty where there is no teacher.
    """

    query: Query
    positive: Document
    negatives: tuple[Document, ...] = ()
    positive_doc_ids: tuple[str, ...] = ()
    margins: tuple[float, ...] = ()


Qrels = dict[str, dict[str, int]]  # query_id -> {doc_id: relevance}
Run = dict[str, dict[str, float]]  # query_id -> {doc_id: score}
