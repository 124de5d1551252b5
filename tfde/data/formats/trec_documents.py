"""TREC's documents: newswire in SGML, and web pages behind the server's header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from tfde.data.formats.trec_markup import Block, plain_text, read_blocks, split_fields
from tfde.data.intake import Intake
from tfde.errors import DataError
from tfde.types import Document

_TITLES = frozenset(("headline", "title", "head", "hl", "ttl", "ti"))
_TEXTS = frozenset(("", "text", "leadpara", "lp"))
# What says where a document comes from is no text of it, even where it has no other.
_NO_TEXT = frozenset(("docno", "docid", "docoldno", "fileid", "date", "date_time", "url"))
_KNOWN = _TITLES | _TEXTS | _NO_TEXT
_NESTED_TITLE = re.compile(
    rf"<({'|'.join(sorted(_TITLES))})\b[^<>]*>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE
)
_DOC_ID = re.compile(r"<DOCNO>(.*?)(?:</DOCNO>|(?=<)|\Z)", re.DOTALL | re.IGNORECASE)
_WEB_HEADER_END = re.compile(r"</DOCHDR\s*>", re.IGNORECASE)


def read_documents(path: Path, intake: Intake, *, encoding: str = "utf-8") -> Iterator[Document]:
    """Yields the documents of a file.

    The title is the headline. The text is what stands in TEXT, LP and LEADPARA, however many
    there are, and outside of every field; where a document has none of these, in its other fields.
    Other fields (BYLINE, SUBJECT ...) are left out and counted by name. A document with a DOCHDR
    is a web page: title and visible text come from its HTML.

    Args:
        path: The file, plain or packed.
        intake: The place, and what becomes of bad records.
        encoding: That of the file; TREC's disks are in `latin-1`, newer collections in UTF-8.

    Raises:
        DataError: a document without </DOC>, DOCNO, or any title and text.
    """
    for block in read_blocks(path, ("DOC",), intake, encoding=encoding):
        document = intake.take(_document, path, block, intake)
        if document is not None:
            yield document


def _document(path: Path, block: Block, intake: Intake) -> Document:
    found = _DOC_ID.search(block.text)
    if found is None or len(found[1].split()) != 1:
        rule = "a document must have an id without white space in <DOCNO>."
        raise DataError(path, block.line, rule, block.text)
    header_end = _WEB_HEADER_END.search(block.text)
    if header_end is not None:
        title, text = _web_page(block.text[header_end.end() :])
    else:
        title, text = _article(block.text, intake)
    document = Document(found[1].strip(), title, text)
    if not document.title and not document.text:
        rule = "a document must have text in <TEXT> or a <HEADLINE>."
        raise DataError(path, block.line, rule, document.doc_id)
    return document


def _article(markup: str, intake: Intake) -> tuple[str, str]:
    titles, texts, others = [], [], []
    for field in split_fields(markup, _KNOWN):
        if field.name in _TITLES:
            titles.append(field.markup)
        else:
            titles += [match[2] for match in _NESTED_TITLE.finditer(field.markup)]
            if field.name in _TEXTS:
                texts.append(field.markup)
            elif field.name not in _NO_TEXT:
                others.append(field)
    text = plain_text(" ".join(texts))
    if not text:
        text = plain_text(" ".join(field.markup for field in others))
    else:
        for field in others:
            intake.leave_out(f"<{field.name.upper()}>")
    return plain_text(" ".join(titles)), text


def _web_page(markup: str) -> tuple[str, str]:
    page = _VisibleText()
    page.feed(markup)
    page.close()
    return " ".join("".join(page.title).split()), " ".join("".join(page.text).split())


class _VisibleText(HTMLParser):
    """Collects a page's title and the text that a reader would see."""

    _HIDDEN = frozenset(("script", "style", "noscript", "template"))
    _INLINE = frozenset(("a", "abbr", "b", "big", "em", "font", "i", "s", "small", "span", "u"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.text: list[str] = []
        self._hidden = ""
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if not self._hidden and tag in self._HIDDEN:
            self._hidden = tag
        self._in_title = tag == "title" and not self.title
        if tag not in self._INLINE:
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""
        if tag == "title":
            self._in_title = False
        if tag not in self._INLINE:
            self.text.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            (self.title if self._in_title else self.text).append(data)
