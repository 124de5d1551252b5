"""Pages of a wiki from its XML dump."""

from __future__ import annotations

import functools
import html
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from tfde.data.batched import batched
from tfde.data.ids import key_of
from tfde.data.pages import WITHOUT_TEXT, Page, empty_corpus, links_of, sections_of
from tfde.errors import DataError
from tfde.pretraining.guarded_map import MAX_PAGE_SECONDS, Lost, guarded_map
from tfde.pretraining.mediawiki_dump import DumpPage, SiteInfo, read_dump, read_site
from tfde.pretraining.wikitext import parse_wikitext
from tfde.storage.intake import Intake

MAX_TEXT_CHARACTERS = 1 << 22  # MediaWiki itself takes 2 MiB, unless told otherwise
_PAGES_A_CHUNK = 32
# MediaWiki itself follows one; a chain of more waits for a robot to shorten it.
_MAX_REDIRECTS = 4


def read_mediawiki(
    path: str | Path,
    intake: Intake | None = None,
    *,
    workers: int = 1,
    page_seconds: float = MAX_PAGE_SECONDS,
) -> Iterator[Page]:
    """Yields the articles of a MediaWiki XML dump, in the dump's order.

    The dump is read twice: for the titles and redirects, then for the texts. A page's id is its
    number in the wiki, its links are resolved through redirects. Left out and counted are pages
    of other namespaces, redirects, pages that are no wikitext or have no text beside templates,
    and links to pages that are not in the dump, which every wiki has. In memory are 16 bytes a
    title and a few pages a worker.

    Args:
        path: The dump, plain or packed (`.bz2`, `.gz`, `.zst`).
        intake: Takes bad pages; `None` raises the first.
        workers: Processes that parse the markup.
        page_seconds: Of processor time that a page may take.

    Raises:
        DataError: as `read_site` and `read_dump`; markup cannot be parsed, or not in its time; a
            page has more than `MAX_TEXT_CHARACTERS`; there is no page with text.
    """
    intake = intake or Intake()
    site = read_site(path)
    table = _titles(path, site, intake)
    articles = _articles(path, site, intake)
    chunks = batched(articles, _PAGES_A_CHUNK)
    found = False
    parse = functools.partial(_parse, site)
    for chunk in guarded_map(parse, chunks, workers=workers, seconds=page_seconds):
        for article, parsed in chunk:
            page = _page(path, article, parsed, table, intake)
            if page is not None:
                found = True
                yield page
    if not found:
        raise empty_corpus(path)


def _titles(path: str | Path, site: SiteInfo, intake: Intake) -> TitleTable:
    table = TitleTable(first_letter=site.first_letter)
    for page in read_dump(path, site, Intake(skip_bad=intake.skip_bad)):
        if page.namespace == 0 and page.redirect is None and page.is_wikitext:
            table.add_page(page.title, page.number)
        elif page.namespace == 0 and page.redirect:
            table.add_redirect(page.title, page.redirect)
    return table


def _articles(path: str | Path, site: SiteInfo, intake: Intake) -> Iterator[DumpPage]:
    for page in read_dump(path, site, intake):
        if page.namespace != 0:
            intake.leave_out("pages of other namespaces")
        elif page.redirect is not None:
            intake.leave_out("redirects")
        elif not page.is_wikitext:
            intake.leave_out("pages that are no wikitext")
        elif len(page.text) > MAX_TEXT_CHARACTERS:
            rule = f"a page must have at most {MAX_TEXT_CHARACTERS:,} characters of markup."
            intake.bad(DataError(path, page.line, rule, page.title), "page too large")
        else:
            yield page


def _parse(site: SiteInfo, page: DumpPage) -> dict[str, Any] | str:
    """Returns what a page's markup says, or why it says nothing; runs in a worker."""
    try:
        return parse_wikitext(page.text, site.namespaces)._asdict()
    except ValueError as error:
        return f"the markup must be parsable ({error})."


def _page(
    path: str | Path,
    article: DumpPage,
    parsed: dict[str, Any] | str | Lost,
    table: TitleTable,
    intake: Intake,
) -> Page | None:
    line, number, title = article.line, article.number, article.title
    if isinstance(parsed, Lost):
        rule = f"the markup must be parsable {parsed.reason}."
        intake.bad(DataError(path, line, rule, title), "page too complex")
        return None
    if isinstance(parsed, str):
        intake.bad(DataError(path, line, parsed, title), "broken markup")
        return None
    if not parsed["sections"]:
        intake.leave_out(WITHOUT_TEXT)  # empty, or only templates: every wiki has such
        return None
    targets = {target: table.page_number(target) for target in parsed["links"]}
    intake.leave_out("links to pages outside the dump", list(targets.values()).count(None))

    def page_id(target: str) -> str | None:
        found = targets[target]
        return None if found in (None, number) else str(found)

    sections = sections_of(parsed["sections"], page_id)
    return Page(str(number), title, sections, links_of(targets, page_id))


class TitleTable:
    """Titles and redirects of a wiki, in 16 bytes each.

    Titles are added first; then they can be looked up.

    Args:
        first_letter: Whether the first letter of a title is always a capital.
    """

    def __init__(self, *, first_letter: bool) -> None:
        self.first_letter = first_letter
        self._titles = _Lookup()
        self._redirects = _Lookup()

    def add_page(self, title: str, number: int) -> None:
        """Adds a page with its number."""
        self._titles.add(self._key(title), number)

    def add_redirect(self, title: str, target: str) -> None:
        """Adds a page that leads on to another one."""
        self._redirects.add(self._key(title), self._key(target))

    def page_number(self, target: str) -> int | None:
        """Returns the number of the page that a link's target names, through redirects."""
        key: int | None = self._key(target)
        for _ in range(1 + _MAX_REDIRECTS):
            if key is None:
                return None
            number = self._titles.get(key)
            if number is not None:
                return number
            key = self._redirects.get(key)
        return None

    def _key(self, title: str) -> int:
        title = unquote(html.unescape(title)).partition("#")[0]
        title = " ".join(title.replace("_", " ").split())
        if self.first_letter:
            title = title[:1].upper() + title[1:]
        return key_of(title)


class _Lookup:
    """Numbers by key, sorted when the first is looked up."""

    def __init__(self) -> None:
        self._keys, self._values = array("q"), array("q")
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)

    def get(self, key: int) -> int | None:
        if self._sorted is None:
            keys = np.array(self._keys, np.int64)
            order = np.argsort(keys, kind="stable")
            self._sorted = keys[order], np.array(self._values, np.int64)[order]
        keys, values = self._sorted
        place = int(np.searchsorted(keys, key))
        return int(values[place]) if place < len(keys) and keys[place] == key else None
