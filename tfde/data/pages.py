"""Pages: documents with sections and links, the raw material of pre-training pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfde.data.ids import KnownIds
from tfde.errors import DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake
from tfde.storage.json_file import json_fault
from tfde.storage.json_lines import id_field, string_field, write_json_lines

NO_TEXT = "a page must have text: a section with a passage."
# Why a reader of a wiki or a folder leaves something out that is good.
WITHOUT_TEXT = "pages without text"
LEFT_OUT_LINKS = "links to pages that were left out"


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


def sections_of(values: Iterable[Any]) -> tuple[Section, ...]:
    """Returns sections from what JSON makes of them: pairs of a heading and a list."""
    return tuple(Section(heading, tuple(passages)) for heading, passages in values)


def read_pages(path: str | Path, intake: Intake | None = None) -> Iterator[Page]:
    """Yields the pages of a file of pages, JSON Lines, in their order.

    A line is `{"id", "title", "sections": [{"heading", "passages": [...]}], "links": [ids]}`;
    `title`, `heading` and `links` may be absent, other fields are ignored, and a section without
    passages is left out. Whether ids are unique and links lead somewhere is for the reader of all
    pages to say (`tfde.pretraining.build_store`).

    Args:
        path: The file, plain or packed.
        intake: Takes bad lines; `None` raises the first.

    Raises:
        DataError: a line is not UTF-8, not JSON, lacks a field or has one of a wrong type, or a
            page has no text; the packed stream is damaged; the file holds no page.
    """
    path = Path(path)
    intake = intake or Intake()
    found = False
    for number, line in read_lines(path, intake):
        try:
            page = parse_page(path, number, line)
        except DataError as error:
            intake.bad(error, fault_kind(error.rule))
            continue
        found = True
        yield page
    if not found:
        raise empty_corpus(path)


def parse_page(path: str | Path, number: int, line: str) -> Page:
    """Returns the page that a line of a file of pages holds.

    Raises:
        DataError: as `read_pages`.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(path, number, f"must be JSON ({json_fault(error)}).", line) from error
    if not isinstance(record, dict):
        raise DataError(path, number, "must be a JSON object.", record)
    page_id = id_field(path, number, record, "id")
    title = string_field(path, number, record, "title", optional=True)
    sections = tuple(
        Section(heading, passages)
        for heading, passages in (
            _section(path, number, value) for value in _list(path, number, record, "sections")
        )
        if passages
    )
    if not sections:
        raise DataError(path, number, NO_TEXT, page_id)
    links = tuple(_texts(path, number, record, "links")) if record.get("links") else ()
    return Page(page_id, title, sections, links)


def fault_kind(rule: str) -> str:
    """Returns in a word or two what is wrong with a page, for counting."""
    kinds = {NO_TEXT: "page without text", "must be JSON": "not JSON"}
    return next((kind for start, kind in kinds.items() if rule.startswith(start)), "bad field")


def empty_corpus(path: str | Path) -> DataError:
    """Returns what to raise where no page at all was found."""
    return DataError(path, None, "must hold at least one page with text.")


def with_links_within(pages: Iterable[Page], known: KnownIds, intake: Intake) -> Iterator[Page]:
    """Yields pages with their links to pages that are known; counts the others as left out."""
    for page in pages:
        links = tuple(link for link in page.links if link in known)
        intake.leave_out(LEFT_OUT_LINKS, len(page.links) - len(links))
        yield page._replace(links=links)


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


def _section(path: str | Path, line: int, value: Any) -> tuple[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        rule = "field 'sections' must hold objects with 'heading' and 'passages'."
        raise DataError(path, line, rule, value)
    heading = string_field(path, line, value, "heading", optional=True)
    return heading, tuple(_texts(path, line, value, "passages"))


def _texts(path: str | Path, line: int, record: Mapping[str, Any], name: str) -> Iterator[str]:
    for value in _list(path, line, record, name):
        yield string_field(path, line, {name: value}, name)


def _list(path: str | Path, line: int, record: Mapping[str, Any], name: str) -> list[Any]:
    if name not in record:
        raise DataError(path, line, f"field {name!r} is missing.", dict(record))
    value = record[name]
    if not isinstance(value, list):
        raise DataError(path, line, f"field {name!r} must be a list.", value)
    return value
