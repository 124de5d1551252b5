"""TREC's documents: newswire in SGML, and web pages behind the server's header."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from tfde.data.formats.trec_markup import (
    Block,
    field_tags,
    last_ends,
    plain_text,
    read_blocks,
    split_fields,
)
from tfde.errors import DataError
from tfde.storage.intake import Intake
from tfde.types import Document

_TITLES = frozenset(("headline", "title", "head", "hl", "ttl", "ti"))
_TEXTS = frozenset(("", "text", "leadpara", "lp"))
# What says where a document comes from is no text of it, even where it has no other.
_NO_TEXT = frozenset(("docno", "docid", "docoldno", "fileid", "date", "date_time", "url"))
_KNOWN = _TITLES | _TEXTS | _NO_TEXT
_DOC_ID = re.compile(r"<DOCNO>(.*?)(?:</DOCNO>|(?=<)|\Z)", re.DOTALL | re.IGNORECASE)
_ID_ATTRIBUTE = re.compile(r"""(?<!\S)id\s*=\s*["']?([^"']*)""", re.IGNORECASE)  # NTCIR's
_WEB_HEADER_END = re.compile(r"</DOCHDR\s*>", re.IGNORECASE)
# A tag of a web page. `>` may stand in what is quoted, and a few `<`; no more of them, so that
# the time for tags without end does not grow with the square of the page.
_QUOTED = "|".join(rf"{quote}[^{quote}<]*+(?:<[^{quote}<]*+){{0,8}}+{quote}" for quote in "\"'")
_WEB_TAG = re.compile(
    r"<!--|<[!?][^<>]*>"
    rf"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/<>]*)(?:[^<>=]++|=\s*+(?:{_QUOTED})|=)*+>"
)
_HIDDEN = frozenset(("script", "style", "noscript", "template"))
_INLINE = frozenset(("a", "abbr", "b", "big", "em", "font", "i", "s", "small", "span", "u"))
_NO_MARKUP = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}


def read_documents(path: Path, intake: Intake, *, encoding: str = "utf-8") -> Iterator[Document]:
    """Yields the documents of a file.

    The title is the headline. The text is what stands in TEXT, LP and LEADPARA, however many
    there are, and outside of every field; where a document has none of these, in its other fields.
    Other fields (BYLINE, DATE ...) are metadata under their names in small letters, a list where
    one comes again. A document with a DOCHDR is a web page: title and visible text come from its
    HTML.

    Args:
        path: The file, plain or packed.
        intake: The place, and what becomes of bad records.
        encoding: That of the file; TREC's disks are in `latin-1`, newer collections in UTF-8.

    Raises:
        DataError: a document without </DOC> within bounds, or without an id.
    """
    for block in read_blocks(path, ("DOC",), intake, encoding=encoding):
        document = intake.take(_document, path, block)
        if document is not None:
            yield document


def _document(path: Path, block: Block) -> Document:
    found = _DOC_ID.search(block.text) or _ID_ATTRIBUTE.search(block.attributes)
    if found is None or len(found[1].split()) != 1:
        rule = "a document must have an id without white space in <DOCNO> or in <DOC id=...>."
        raise DataError(path, block.line, rule, block.text)
    header_end = _WEB_HEADER_END.search(block.text)
    metadata: dict[str, str | list[str]] = {}
    if header_end is not None:
        title, text = _web_page(block.text[header_end.end() :])
    else:
        title, text, metadata = _article(block.text)
    return Document(found[1].strip(), title, text, metadata or None)


def _article(markup: str) -> tuple[str, str, dict[str, str | list[str]]]:
    titles, texts, others = [], [], []
    known: dict[str, list[str]] = {}
    for field in split_fields(markup, _KNOWN):
        if field.name in _TITLES:
            titles.append(field.markup)
        else:
            titles += _nested_titles(field.markup)
            if field.name in _TEXTS:
                texts.append(field.markup)
            elif field.name not in _NO_TEXT:
                others.append(field)
            elif field.name != "docno":
                known.setdefault(field.name, []).append(plain_text(field.markup))
    text = plain_text(" ".join(texts))
    if not text:
        text = plain_text(" ".join(field.markup for field in others))
    else:
        for field in others:
            known.setdefault(field.name, []).append(plain_text(field.markup))
    metadata = {name: v[0] if len(v) == 1 else v for name, v in known.items() if any(v)}
    return plain_text(" ".join(titles)), text, metadata


def _nested_titles(markup: str) -> Iterator[str]:
    """Yields what stands between a title's tag and its end tag."""
    ends = last_ends(markup)
    name, start = "", 0
    for tag in field_tags(markup):
        here = tag["name"].lower()
        if tag["close"] and here == name:
            yield markup[start : tag.start()]
            name = ""
        elif not tag["close"] and not name and here in _TITLES and ends.get(here, -1) > tag.start():
            name, start = here, tag.end()


def _web_page(markup: str) -> tuple[str, str]:
    """Returns a page's title and the text that a reader would see."""
    titles: list[str] = []
    texts: list[str] = []
    hidden, in_title, position = "", False, 0
    last_comment = markup.rfind("-->")
    while position < len(markup):
        tag = _WEB_TAG.search(markup, position)
        if not hidden:
            data = markup[position : tag.start() if tag else None]
            (titles if in_title else texts).append(html.unescape(data))
        if tag is None:
            break
        position = tag.end()
        if tag[0] == "<!--" and position <= last_comment:
            position = markup.index("-->", position) + 3
        if tag["name"] is None:
            continue
        name = tag["name"].lower()
        if name not in _INLINE:
            texts.append(" ")
        if tag["close"]:
            hidden = "" if name == hidden else hidden
            in_title = in_title and name != "title"
            continue
        in_title = name == "title" and not titles
        if not hidden and name in _HIDDEN and not tag[0].endswith("/>"):
            hidden = name
            if name in _NO_MARKUP:
                end = _NO_MARKUP[name].search(markup, position)
                position = end.start() if end else len(markup)
    return " ".join("".join(titles).split()), " ".join("".join(texts).split())
