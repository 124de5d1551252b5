"""TREC's markup: blocks such as `<DOC>`, the fields in them, and documents of these."""

from __future__ import annotations

import html
import itertools
import logging
import re
from collections.abc import Collection, Container, Iterator
from pathlib import Path
from typing import NamedTuple

from tfde.errors import DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake
from tfde.types import Document

logger = logging.getLogger(__name__)
# The field's largest documents have some MiB; one that never ends must not fill the memory.
MAX_BLOCK_CHARACTERS = 1 << 24
# Each takes time that grows with the text, not with its square: no part of one looks behind the
# next `<`, but a comment, which is looked for only where one ends.
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<[!?][^<>]*>")
_FIELD_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w.-]*)[^<>]*>")
# Entities of TREC's disks that HTML does not have.
_SGML_ENTITIES = {"&blank;": " ", "&hyph;": "-"}
_CONTROL_CHARACTERS = dict.fromkeys((*range(9), *range(14, 32), 127), " ")
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


class Block(NamedTuple):
    """What stands between a begin tag and its end tag.

    Args:
        line: 1-based line of the begin tag.
        tag: The tag's name, in small letters.
        attributes: What the begin tag holds behind its name.
        text: The markup in between; lines end in a line feed.
    """

    line: int
    tag: str
    attributes: str
    text: str


class Field(NamedTuple):
    """A part of a block: the tag's name in small letters ("" outside of all), and its markup."""

    name: str
    markup: str


def read_blocks(
    path: Path, tags: tuple[str, ...], intake: Intake, *, encoding: str = "utf-8"
) -> Iterator[Block]:
    """Yields the blocks of a file; tags may stand anywhere in a line, in capitals or not.

    Text between two blocks is no part of any: it is counted in `intake.left_out`, and the first
    of a file is shown in the log.

    Raises:
        DataError: a block without its end, of more than `MAX_BLOCK_CHARACTERS`, or an end without
            a block.
    """
    bounds = re.compile(rf"<(/?)({'|'.join(tags)})(\s[^<>]*)?>", re.IGNORECASE)
    open_block: Block | None = None
    parts: list[str] = []
    size = 0  # characters of the block; below 0 in one that is skipped
    outside = _Outside(path, tags[0], intake)
    for number, line in read_lines(path, intake, encoding=encoding):
        position = 0
        for match in bounds.finditer(line):
            closes, tag = match[1] == "/", match[2].lower()
            if closes and open_block is not None and tag != open_block.tag:
                continue
            before = line[position : match.start()]
            position = match.end()
            if open_block is None:
                outside.note(number, before)
            if closes and open_block is not None:
                if size + len(before) > MAX_BLOCK_CHARACTERS:
                    intake.bad(_too_large(path, open_block))
                elif size >= 0:
                    yield open_block._replace(text="\n".join([*parts, before]))
                open_block = None
                continue
            if closes:
                rule = f"</{match[2]}> must close a <{match[2]}>."
                intake.bad(DataError(path, number, rule, line))
                continue
            if open_block is not None and size >= 0:
                intake.bad(_unclosed(path, open_block))
            open_block, parts, size = Block(number, tag, match[3] or "", ""), [], 0
        if open_block is None:
            outside.note(number, line[position:])
        elif size >= 0:
            parts.append(line[position:])
            size += len(parts[-1]) + 1
            if size > MAX_BLOCK_CHARACTERS:
                intake.bad(_too_large(path, open_block))
                parts, size = [], -MAX_BLOCK_CHARACTERS
    if open_block is not None and size >= 0:
        intake.bad(_unclosed(path, open_block))


def split_fields(markup: str, known: Container[str]) -> Iterator[Field]:
    """Yields the fields of a block, and what stands outside of them, in their order.

    A field begins at a tag that is `known`, or that is closed later. It ends at its end tag; one
    that is never closed ends where the next field begins. Tags inside of a field are its markup.
    """
    closed_at = last_ends(markup)
    name, start = "", 0
    for tag in field_tags(markup):
        here = tag["name"].lower()
        if tag["close"]:
            ends = here == name
        else:
            unclosed = closed_at.get(name, -1) < start
            ends = unclosed and (here in known or closed_at.get(here, -1) > tag.start())
        if ends:
            yield Field(name, markup[start : tag.start()])
            name, start = "" if tag["close"] else here, tag.end()
    yield Field(name, markup[start:])


def field_tags(markup: str) -> Iterator[re.Match[str]]:
    """Yields the tags outside of comments, with their groups `close` ("/" or "") and `name`."""
    end = _comments_end(markup)
    position = 0
    for comment in _COMMENT.finditer(markup, 0, end):
        yield from _FIELD_TAG.finditer(markup, position, comment.start())
        position = comment.end()
    yield from _FIELD_TAG.finditer(markup, position)


def last_ends(markup: str) -> dict[str, int]:
    """Returns where the last end tag of each name stands."""
    return {tag["name"].lower(): tag.start() for tag in field_tags(markup) if tag["close"]}


def plain_text(markup: str) -> str:
    """Returns text without tags and comments: entities resolved, white space as one space."""
    end = _comments_end(markup)
    text = _TAG.sub(" ", _COMMENT.sub(" ", markup[:end]) + markup[end:])
    for entity, character in _SGML_ENTITIES.items():
        text = text.replace(entity, character)
    return " ".join(html.unescape(text).translate(_CONTROL_CHARACTERS).split())


def _comments_end(markup: str) -> int:
    """Returns where the last comment may end: a `<!--` behind it begins none."""
    return markup.rfind("-->") + 3 if "-->" in markup else 0


class _Outside:
    """Counts the lines that hold text outside of blocks."""

    def __init__(self, path: Path, tag: str, intake: Intake) -> None:
        self._path, self._tag, self._intake = path, tag, intake
        self._line = 0

    def note(self, line: int, markup: str) -> None:
        text = plain_text(markup)
        if not text or line == self._line:
            return
        if not self._line:
            rule = f"text outside of <{self._tag}> is left out (the first of the file)."
            logger.warning("%s", DataError(self._path, line, rule, text))
        self._line = line
        self._intake.leave_out(f"lines outside of <{self._tag}>")


def _unclosed(path: Path, block: Block) -> DataError:
    tag = _written(block)
    rule = f"<{tag}> must be closed by </{tag}>; the file is cut or damaged."
    return DataError(path, block.line, rule)


def _too_large(path: Path, block: Block) -> DataError:
    tag = _written(block)
    rule = f"<{tag}> must be closed by </{tag}> within {MAX_BLOCK_CHARACTERS >> 20} Mi characters."
    return DataError(path, block.line, rule)


def _written(block: Block) -> str:
    return block.tag.upper() if block.tag == "doc" else block.tag


def read_documents(path: Path, intake: Intake, *, encoding: str = "utf-8") -> Iterator[Document]:
    """Yields the documents of a file.

    The title is the headline. The text is what stands in TEXT, LP and LEADPARA, however many
    there are, and outside of every field; where a document has none of these, in those that stand
    inside other fields, else in all other fields.
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
            titles += _nested(field.markup, _TITLES)
            if field.name in _TEXTS:
                texts.append(field.markup)
            elif field.name not in _NO_TEXT:
                others.append(field)
            elif field.name != "docno":
                known.setdefault(field.name, []).append(plain_text(field.markup))
    text = plain_text(" ".join(texts))
    if not text:  # AQUAINT's stand within BODY
        inside = {field: list(_nested(field.markup, _TEXTS)) for field in others}
        text = plain_text(" ".join(itertools.chain.from_iterable(inside.values())))
        if text:
            others = [field for field in others if not inside[field]]
    if not text:
        text = plain_text(" ".join(field.markup for field in others))
    else:
        for field in others:
            known.setdefault(field.name, []).append(plain_text(field.markup))
    metadata = {name: v[0] if len(v) == 1 else v for name, v in known.items() if any(v)}
    return plain_text(" ".join(titles)), text, metadata


def _nested(markup: str, names: Collection[str]) -> Iterator[str]:
    """Yields what stands between a tag of such a name and its end tag."""
    ends = last_ends(markup)
    name, start = "", 0
    for tag in field_tags(markup):
        here = tag["name"].lower()
        if tag["close"] and here == name:
            yield markup[start : tag.start()]
            name = ""
        elif not tag["close"] and not name and here in names and ends.get(here, -1) > tag.start():
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
