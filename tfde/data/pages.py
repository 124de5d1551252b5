"""Pages: documents with sections and links, the raw material of pre-training pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfde.data.ids import KnownIds
from tfde.errors import DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake
from tfde.storage.json_file import json_fault
from tfde.storage.json_lines import (
    id_field,
    list_field,
    string_field,
    strings_field,
    write_json_lines,
)

NO_TEXT = "a page must have text: a section with a passage."
# Why a reader of a wiki or a folder leaves something out that is good.
WITHOUT_TEXT = "pages without text"
LEFT_OUT_LINKS = "links to pages that were left out"


class Section(NamedTuple):
    """A part of a page: its heading (empty for the opening part) and its paragraphs.

    `links` has for each passage the ids of the pages that it links to; where no passage is known
    to link to a page, it is empty.
    """

    heading: str
    passages: tuple[str, ...]
    links: tuple[tuple[str, ...], ...] = ()


class Page(NamedTuple):
    """A page: id, title, sections, and the ids of the pages it links to, its passages or not."""

    page_id: str
    title: str
    sections: tuple[Section, ...]
    links: tuple[str, ...] = ()


def sections_of(values: Iterable[Any], target: Callable[[str], str | None]) -> tuple[Section, ...]:
    """Returns sections with other links.

    Args:
        values: Sections, or what JSON makes of them: a heading, passages, links.
        target: From a link to the id of a page, `None` to drop it.
    """
    sections = []
    for heading, passages, links in values:
        found = tuple(links_of(names, target) for names in links)
        sections.append(Section(heading, tuple(passages), found if any(found) else ()))
    return tuple(sections)


def links_of(names: Iterable[str], target: Callable[[str], str | None]) -> tuple[str, ...]:
    """Returns where links lead, each once, in their order; arguments as of `sections_of`."""
    found = (target(name) for name in names)
    return tuple(dict.fromkeys(page_id for page_id in found if page_id is not None))


def read_pages(path: str | Path, intake: Intake | None = None) -> Iterator[Page]:
    """Yields the pages of a file of pages, JSON Lines, in their order.

    A line is `{"id", "title", "sections": [{"heading", "passages": [...], "links": [[ids], ...]}],
    "links": [ids]}`; `title`, `heading` and `links` may be absent, other fields are ignored, and a
    section without passages is left out. The links of a section are those of each passage, and
    are links of the page too. Whether ids are unique and links lead somewhere is for the reader of
    all pages to say (`tfde.pretraining.build_store`).

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
        section
        for value in list_field(path, number, record, "sections")
        if (section := _section(path, number, value)).passages
    )
    if not sections:
        raise DataError(path, number, NO_TEXT, page_id)
    links = list(strings_field(path, number, record, "links")) if record.get("links") else []
    for section in sections:
        for targets in section.links:
            links += targets
    return Page(page_id, title, sections, tuple(dict.fromkeys(links)))


def fault_kind(rule: str) -> str:
    """Returns in a word or two what is wrong with a page, for counting."""
    kinds = {NO_TEXT: "page without text", "must be JSON": "not JSON"}
    return next((kind for start, kind in kinds.items() if rule.startswith(start)), "bad field")


def empty_corpus(path: str | Path) -> DataError:
    """Returns what to raise where no page at all was found."""
    return DataError(path, None, "must hold at least one page with text.")


def with_links_within(pages: Iterable[Page], known: KnownIds, intake: Intake) -> Iterator[Page]:
    """Yields pages with their links to pages that are known; counts the others as left out."""

    def target(page_id: str) -> str | None:
        return page_id if page_id in known else None

    for page in pages:
        links = links_of(page.links, target)
        intake.leave_out(LEFT_OUT_LINKS, len(page.links) - len(links))
        yield page._replace(links=links, sections=sections_of(page.sections, target))


def write_pages(path: str | Path, pages: Iterable[Page]) -> int:
    """Writes one page a line as JSON, atomically; returns the number of pages."""
    return write_json_lines(
        path,
        (
            {
                "id": page.page_id,
                "title": page.title,
                "sections": [_section_to_json(section) for section in page.sections],
                "links": list(page.links),
            }
            for page in pages
        ),
    )


def _section_to_json(section: Section) -> dict[str, Any]:
    record = section._asdict()
    if not section.links:
        del record["links"]
    return record


def _section(path: str | Path, line: int, value: Any) -> Section:
    if not isinstance(value, Mapping):
        rule = "field 'sections' must hold objects with 'heading' and 'passages'."
        raise DataError(path, line, rule, value)
    heading = string_field(path, line, value, "heading", optional=True)
    passages = strings_field(path, line, value, "passages")
    if not value.get("links"):
        return Section(heading, passages)
    links = list_field(path, line, value, "links")
    if len(links) != len(passages):
        rule = f"field 'links' of a section must have {len(passages)} lists, one a passage."
        raise DataError(path, line, rule, len(links))
    return Section(
        heading,
        passages,
        tuple(strings_field(path, line, {"links": ids}, "links") for ids in links),
    )
