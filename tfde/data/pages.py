"""Pages: documents with sections and links, the raw material of pre-training pairs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tfde.data.json_lines import write_json_lines


class Section(NamedTuple):
    """A part of a page: its heading (empty for the opening part) and its paragraphs."""

    heading: str
    passages: tuple[str, ...]


class Page(NamedTuple):
    """A page: id, title, sections, and the ids of the pages it links to."""

    page_id: str
    title: str
    sections: tuple[Section, ...]
    links: tuple[str, ...] = ()


def write_pages(path: str | Path, pages: Iterable[Page]) -> int:
    """Writes one page a line as JSON, atomically; returns the number of pages."""
    return write_json_lines(
        path,
        (
            {
                "id": page.page_id,
                "title": page.title,
                "sections": [
                    {"heading": section.heading, "passages": list(section.passages)}
                    for section in page.sections
                ],
                "links": list(page.links),
            }
            for page in pages
        ),
    )
