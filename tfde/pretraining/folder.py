"""Pages of a folder of HTML and Markdown files, with the links between them."""

from __future__ import annotations

import codecs
import functools
import itertools
import logging
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from tfde.data.batched import batched
from tfde.data.folder_files import (
    MARKDOWN_SUFFIXES,
    TOO_LARGE,
    encoding_error,
    files_within,
    read_bounded,
    title_of,
    without_front_matter,
)
from tfde.data.pages import WITHOUT_TEXT, Page, Section, empty_corpus, links_of, sections_of
from tfde.environment import require_extra
from tfde.errors import ConfigError, DataError
from tfde.pretraining.guarded_map import MAX_PAGE_SECONDS, Lost, guarded_map
from tfde.pretraining.plain_text import link_mark, plain_sections, unmarked
from tfde.storage.intake import Intake

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

HTML_SUFFIXES = (".html", ".htm", ".xhtml")
_LOG = logging.getLogger(__name__)
_FILES_A_CHUNK = 32
# What a link may leave out: the suffix, or the file of a folder.
_SUFFIXES = (*HTML_SUFFIXES, *MARKDOWN_SUFFIXES)
_INDEX_FILES = ("index.html", "index.htm", "index.md", "README.md", "readme.md")
_CHARSET = re.compile(rb"""<meta[^>]*charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
# What is no running text, or stands on every page of a site.
_HIDDEN_NAMES = """
head script style template noscript nav footer aside form button select textarea svg math
iframe object audio video canvas pre table figure
"""
_HIDDEN = frozenset(_HIDDEN_NAMES.split())
_BLOCK_NAMES = """
address article blockquote body center details div dl fieldset header hgroup hr main menu ol p
section summary ul
"""
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_SPACE = re.compile(r"\s+")
# Items of a list stay in one paragraph; a paragraph inside an item is one of its own.
_LINES = frozenset(("br", "li", "dt", "dd"))


def read_folder(
    path: str | Path,
    intake: Intake | None = None,
    *,
    workers: int = 1,
    page_seconds: float = MAX_PAGE_SECONDS,
) -> Iterator[Page]:
    """Yields a page for each HTML and Markdown file of a folder, sorted by path.

    A page's id is its path in the folder, as it would stand in a URL. A file is UTF-8 unless its
    `<meta charset>` says otherwise. A link counts if it leads to another page of the folder;
    links out of the folder and to files of other kinds are left out and counted. So are files
    without text, symbolic links to folders, and to files outside. In memory are the paths.

    Args:
        path: The folder; hidden files and folders in it are left out.
        intake: Takes bad files and links; `None` raises the first.
        workers: Processes that parse the files.
        page_seconds: Of processor time that a file may take.

    Raises:
        ConfigError: `path` is no folder.
        MissingExtraError: the extra `pages` is not installed.
        DataError: a file is not in its encoding, or in one that Python does not know; it is
            larger than `MAX_FILE_BYTES`, or cannot be parsed in its time; a link leads to nowhere
            in the folder; there is no page with text.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root}: `input` must be a folder that exists.")
    intake = intake or Intake()
    names = files_within(root, _SUFFIXES, intake)
    require_extra("pages", "reading HTML and Markdown")  # here: others parse
    known = set(names)
    found = False
    parse = functools.partial(_parse_file, root)
    chunks = guarded_map(
        parse, batched(names, _FILES_A_CHUNK), workers=workers, seconds=page_seconds
    )
    for name, parsed in itertools.chain.from_iterable(chunks):
        if isinstance(parsed, Lost):
            rule = f"a file must be parsable {parsed.reason}."
            intake.bad(DataError(root / name, None, rule), "page too complex")
            continue
        if "fault" in parsed:
            kind, *fault = parsed["fault"]
            intake.bad(DataError(root / name, *fault), kind)
            continue
        if not parsed["sections"]:
            intake.leave_out(WITHOUT_TEXT)
            continue
        page_ids: dict[str, str] = {}
        for href in parsed["links"]:
            target = _target(root, name, href, known)
            if target is None:
                intake.leave_out("links out of the folder or to files of other kinds")
            elif target not in known:
                rule = "a link must lead to a file of the folder."
                line = _line_of(root / name, href)
                intake.bad(DataError(root / name, line, rule, href), "link to nowhere")
            elif target != name:
                page_ids[href] = quote(os.fsencode(target))
        found = True
        title = parsed["title"] or title_of(name)
        sections = sections_of(parsed["sections"], page_ids.get)
        yield Page(quote(os.fsencode(name)), title, sections, links_of(page_ids, page_ids.get))
    if not found:
        raise empty_corpus(root)


def _line_of(path: Path, href: str) -> int | None:
    """Returns where in a file a link stands first; `None` where it is spelled in another way."""
    before, found, _ = path.read_bytes().partition(href.encode())
    return before.count(b"\n") + 1 if found else None


def _parse_file(root: Path, name: str) -> dict[str, Any]:
    """Returns what a file says, or why it says nothing; runs in a worker."""
    try:
        parsed = _parse(root / name)
    except DataError as error:
        kind = "page too large" if error.rule.startswith(TOO_LARGE) else "broken encoding"
        return {"fault": (kind, error.line, error.rule, error.value)}
    return parsed._asdict()


# Python's codec of a declared name -> the one that a browser takes. A page in which the name can be
# read as bytes is not in UTF-16.
_AS_BROWSERS = {
    **dict.fromkeys(("iso8859-1", "ascii"), "cp1252"),
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
    "tis-620": "cp874",
}


def _parse(path: Path) -> HtmlText:
    raw = read_bounded(path)
    is_html = path.suffix.lower() in HTML_SUFFIXES
    declared = _CHARSET.search(raw[:4096]) if is_html else None
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        text = _decoded(raw, encoding)
    except UnicodeDecodeError as error:
        raise encoding_error(path, raw, encoding, error.start) from error
    except (LookupError, UnicodeError) as error:  # "undefined" is a codec that refuses everything
        raise DataError(path, None, "must declare a known encoding.", encoding) from error
    return parse_html(text if is_html else _render_markdown(text))


def _decoded(raw: bytes, encoding: str) -> str:
    """Returns the text of a file as a browser reads it.

    Source: the Encoding Standard, in which other names stand for these codecs.
    """
    codec = codecs.lookup(encoding).name
    codec = _AS_BROWSERS.get(codec, codec)
    if codec == "utf-8":
        return raw.decode("utf-8-sig")
    if codec != "cp1252":
        return raw.decode(codec)
    try:
        return raw.decode("cp1252")
    except UnicodeDecodeError:  # five bytes that Python's table leaves open
        return raw.decode("latin-1")


def _render_markdown(text: str) -> str:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").render(without_front_matter(text))


def _target(root: Path, name: str, href: str, known: set[str]) -> str | None:
    """Returns the path that a link of `name` leads to, `None` if that is no page of the folder.

    A path that is not in `known` leads to nowhere.
    """
    try:
        parts = urlsplit(href)
    except ValueError:
        return None
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return name
    place = unquote(parts.path)
    base = "" if place.startswith("/") else posixpath.dirname(name)
    target = posixpath.normpath(posixpath.join(base, place.lstrip("/")))
    if target.startswith(".."):
        return None
    tried = [
        target,
        *(f"{target}{suffix}" for suffix in _SUFFIXES),
        *(posixpath.normpath(posixpath.join(target, index)) for index in _INDEX_FILES),
    ]
    for candidate in tried:
        if candidate in known:
            return candidate
    try:
        # An image, a download, or a folder that is shown as a list of files.
        return None if (root / target).exists() else target
    except (OSError, ValueError):  # a name that no file can have
        return target


class HtmlText(NamedTuple):
    """Title, sections that have text, and what `<a href>` in the text names, as written.

    The links of a section's passages are among `links`.
    """

    title: str
    sections: tuple[Section, ...]
    links: tuple[str, ...]


def parse_html(text: str) -> HtmlText:
    """Returns the plain text of a page of HTML.

    The text is that of `<main>` or of `<article>` where there is exactly one, else of `<body>`.
    Code, tables, figures, forms and navigation are dropped. The title is the first `<h1>`, else
    `<title>`, else empty; every other heading begins a section.

    Args:
        text: The page.

    Raises:
        MissingExtraError: selectolax is not installed.
    """
    require_extra("pages", "reading HTML")
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(text)
    root = tree.body
    for name in ("main", "article"):
        found = tree.css(name)
        if len(found) == 1:
            root = found[0]
            break
    named = tree.css_first("title")
    title = "" if named is None else " ".join(named.text().split())
    parts: list[tuple[str, list[str]]] = [("", [])]
    links: dict[str, int] = {}
    heading: list[str] | None = None
    has_h1 = False
    for name, node, closing in _walk(root):
        pieces = parts[-1][1] if heading is None else heading
        if name in _HEADINGS:
            if not closing:
                heading = []
                continue
            words = " ".join("".join(heading or []).split())
            heading = None
            if name == "h1" and not has_h1 and words:
                title, has_h1 = words, True
            else:
                parts.append((words, []))
        elif name == "-text":
            pieces.append(unmarked(_SPACE.sub(" ", node.text_content or "")))
        elif name in _LINES:
            pieces.append(" ")
        elif name in _BLOCKS:
            pieces.append("\n\n")
        elif name == "a" and not closing and (target := node.attributes.get("href")):
            number = links.setdefault(target.strip(), len(links))
            if heading is None:
                pieces.append(link_mark(number))
    targets = tuple(links)
    sections = plain_sections(((words, "".join(pieces)) for words, pieces in parts), targets)
    return HtmlText(title, sections, targets)


def _walk(root: LexborNode | None) -> Iterator[tuple[str, Any, bool]]:
    """Yields name and node of everything below `root`, elements again when they close.

    Not recursive: bad HTML nests thousands deep.
    """
    if root is None:
        return
    end = root.mem_id
    node = root.first_child
    while node is not None:
        name = node.tag or ""
        if name not in _HIDDEN:
            yield name, node, False
            child = node.first_child
            if child is not None:
                node = child
                continue
            if name != "-text":
                yield name, node, True
        while node.next is None:
            parent = node.parent
            if parent is None or parent.mem_id == end:
                return
            node = parent
            yield node.tag or "", node, True
        node = node.next
