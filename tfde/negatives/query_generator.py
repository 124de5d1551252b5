"""What query generation asks of a model that reads documents and writes queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tfde.types import Document


class QueryGenerator(Protocol):
    """Documents to queries."""

    def describe(self) -> dict[str, Any]:
        """Returns what the queries depend on, as JSON; work resumes only with an equal one."""
        ...

    def generate(self, documents: Sequence[Document]) -> list[list[str]]:
        """Returns the queries of each document; some may be empty or equal.

        What is drawn for a document depends on its id and the seed alone, not on its neighbours.
        """
        ...


def text_of(document: Document) -> str:
    """Returns what a generator reads of a document: its title, a blank, its text."""
    return f"{document.title} {document.text}".strip()
