"""What a search returns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Hit(NamedTuple):
    """One answer to a query: its rank from 1, its score and the document.

    `metadata` is what is known of the document beyond title and text; `None` is nothing.
    """

    rank: int
    score: float
    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """Returns the fields by name, without `metadata` where there is none."""
        fields = self._asdict()
        if self.metadata is None:
            del fields["metadata"]
        return fields


class Passage(NamedTuple):
    """What is shown of a document."""

    title: str = ""
    text: str = ""
    metadata: dict[str, Any] | None = None


def read_passages(
    doc_ids: Sequence[str],
    titles: Iterable[str],
    texts: Iterable[str],
    metadata: Iterable[str] | None,
) -> dict[str, Passage]:
    """Returns passages by id, from what the model `documents` says of them.

    Args:
        doc_ids: The ids.
        titles: Their titles.
        texts: Their texts.
        metadata: JSON objects, "" for none; `None` where no document has metadata.
    """
    written = [""] * len(doc_ids) if metadata is None else metadata
    found = (json.loads(text) if text else None for text in written)
    passages = map(Passage, titles, texts, found)
    return dict(zip(doc_ids, passages, strict=True))


def make_hits(
    doc_ids: Iterable[Sequence[str]],
    scores: Iterable[Sequence[float]],
    passages: Mapping[str, Passage],
) -> list[list[Hit]]:
    """Returns the hits of each query; a document without passage has empty texts."""
    return [
        [
            Hit(rank, float(score), doc_id, *passages.get(doc_id, Passage()))
            for rank, (doc_id, score) in enumerate(zip(ids, row, strict=True), start=1)
        ]
        for ids, row in zip(doc_ids, scores, strict=True)
    ]
