"""Pages of a wiki from its XML dump."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfde.data.batched import batched
from tfde.data.intake import Intake
from tfde.data.pages import WITHOUT_TEXT, Page, empty_corpus, sections_of
from tfde.errors import DataError
from tfde.pretraining.guarded_map import MAX_PAGE_SECONDS, Lost, guarded_map
from tfde.pretraining.mediawiki_dump import DumpPage, SiteInfo, read_dump, read_site
from tfde.pretraining.title_table import TitleTable
from tfde.pretraining.wikitext import parse_wikitext

MAX_TEXT_CHARACTERS = 1 << 22  # MediaWiki itself takes 2 MiB, unless told otherwise
_PAGES_A_CHUNK = 32


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
        if page.namespace == 0 and page.redirect is None:
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
    targets = [table.page_number(target) for target in parsed["links"]]
    intake.leave_out("links to pages outside the dump", targets.count(None))
    links = dict.fromkeys(str(target) for target in targets if target not in (None, number))
    return Page(str(number), title, sections_of(parsed["sections"]), tuple(links))
