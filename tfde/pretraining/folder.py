"""Pages of a folder of HTML and Markdown files, with the links between them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tfde.data.intake import Intake
from tfde.data.pages import NO_TEXT, Page, empty_corpus
from tfde.errors import ConfigError, DataError
from tfde.pretraining.html_text import HtmlText, parse_html

HTML_SUFFIXES = (".html", ".htm", ".xhtml")
MARKDOWN_SUFFIXES = (".md", ".markdown")

# What a link may leave out: the suffix, or the file of a folder.
_SUFFIXES = (*HTML_SUFFIXES, *MARKDOWN_SUFFIXES)
_INDEX_FILES = ("index.html", "index.htm", "index.md", "README.md", "readme.md")
_CHARSET = re.compile(rb"""<meta[^>]*charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_FRONT_MATTER = re.compile(
    r"\A---[^\S\n]*\n.*?^(?:---|\.\.\.)[^\S\n]*$\n?", re.DOTALL | re.MULTILINE
)


def read_folder(path: str | Path, intake: Intake | None = None) -> Iterator[Page]:
    """Yields a page for each HTML and Markdown file of a folder, sorted by path.

    A page's id is its path in the folder, as it would stand in a URL. A file is UTF-8 unless its
    `<meta charset>` says otherwise. A link counts if it leads to another page of the folder;
    links out of the folder and to files of other kinds are left out and counted. In memory are
    the paths.

    Args:
        path: The folder; hidden files and folders in it are left out.
        intake: Takes bad files and links; `None` raises the first.

    Raises:
        ConfigError: `path` is no folder.
        DataError: a file is not in its encoding, or in one that Python does not know, or has no
            text; a link leads to nowhere in the folder; there is no page.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root}: `input` must be a folder that exists.")
    intake = intake or Intake()
    names, others = _files(root)
    intake.leave_out("files of other kinds", len(others))
    known = set(names)
    found = False
    for name in names:
        try:
            parsed = _parse(root / name)
            if not parsed.sections:
                raise DataError(root / name, None, NO_TEXT)
        except DataError as error:
            kind = "page without text" if error.rule == NO_TEXT else "broken encoding"
            intake.bad(error, kind)
            continue
        links: dict[str, None] = {}
        for href in parsed.links:
            target = _target(root, name, href, known)
            if target is None:
                intake.leave_out("links out of the folder or to files of other kinds")
            elif target not in known:
                rule = "a link must lead to a file of the folder."
                intake.bad(DataError(root / name, None, rule, href), "link to nowhere")
            elif target != name:
                links[quote(target)] = None
        found = True
        title = parsed.title or Path(name).stem.replace("_", " ")
        yield Page(quote(name), title, parsed.sections, tuple(links))
    if not found:
        raise empty_corpus(root)


def _files(root: Path) -> tuple[list[str], list[str]]:
    """Returns the paths of pages and of other files, sorted, with slashes."""
    pages: list[str] = []
    others: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                place = Path(folder, name)
                kind = pages if place.suffix.lower() in _SUFFIXES else others
                kind.append(place.relative_to(root).as_posix())
    return sorted(pages), sorted(others)


def _parse(path: Path) -> HtmlText:
    raw = path.read_bytes()
    is_html = path.suffix.lower() in HTML_SUFFIXES
    declared = _CHARSET.search(raw[:4096]) if is_html else None
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        text = raw.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        rule = f"must be {encoding} (byte {error.start} of the file is not)."
        raise DataError(path, line, rule, raw[error.start : error.start + 8]) from error
    except (LookupError, UnicodeError) as error:  # "undefined" is a codec that refuses everything
        raise DataError(path, None, "must declare a known encoding.", encoding) from error
    return parse_html(text if is_html else _render_markdown(text))


def _render_markdown(text: str) -> str:
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise ImportError(
            "reading HTML and Markdown needs selectolax and markdown-it-py:"
            " pip install 'tfde[pages]'"
        ) from error
    return MarkdownIt("commonmark").enable("table").render(_FRONT_MATTER.sub("", text))


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
