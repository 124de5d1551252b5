"""What all readers of pages agree on: what a paragraph is, and which sections stay."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfde.data.pages import Section

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def paragraphs(text: str) -> list[str]:
    """Returns the paragraphs between blank lines, white space run together.

    What has neither letter nor digit is left out: it is what markup left behind.
    """
    pieces = (" ".join(piece.split()) for piece in _BLANK_LINE.split(text))
    return [piece for piece in pieces if any(map(str.isalnum, piece))]


def join_sections(sections: Iterable[tuple[str, list[str]]]) -> tuple[Section, ...]:
    """Returns the sections that have a passage."""
    return tuple(Section(heading, tuple(passages)) for heading, passages in sections if passages)
