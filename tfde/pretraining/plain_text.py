"""What all readers of pages agree on: what a paragraph is, which sections stay, where links stand.

While a page is rendered, a link is a mark in the text, before what it shows: its number between two
control characters, which are taken out of what the page itself says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tfde.data.pages import Section

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_MARKS = dict.fromkeys(map(ord, "\x01\x02"))
_LINK = re.compile("\x01([0-9]+)\x02")


def link_mark(number: int) -> str:
    """Returns the mark of link `number` of a page."""
    return f"\x01{number}\x02"


def unmarked(text: str) -> str:
    """Returns what a page says without the characters that marks are made of."""
    return text.translate(_MARKS)


def without_marks(text: str) -> str:
    """Returns a text without marks of links."""
    return _LINK.sub("", text)


def plain_sections(parts: Iterable[tuple[str, str]], targets: Sequence[str]) -> tuple[Section, ...]:
    """Returns the sections that have a passage.

    Passages are the paragraphs between blank lines, white space run together. What has neither
    letter nor digit is left out: it is what markup left behind.

    Args:
        parts: Headings, and texts with marks of links.
        targets: What each link of the page names.
    """
    sections = []
    for heading, text in parts:
        passages, links = [], []
        for piece in _BLANK_LINE.split(text):
            passage = " ".join(without_marks(piece).split())
            if any(map(str.isalnum, passage)):
                numbers = map(int, _LINK.findall(piece))
                passages.append(passage)
                links.append(tuple(dict.fromkeys(targets[number] for number in numbers)))
        if passages:
            sections.append(Section(heading, tuple(passages), tuple(links) if any(links) else ()))
    return tuple(sections)
