"""What a search returns."""

from __future__ import annotations

from typing import NamedTuple


class Hit(NamedTuple):
    """One answer to a query: its rank from 1, its score and the document."""

    rank: int
    score: float
    doc_id: str
    title: str
    text: str
