"""TREC's markup: blocks such as `<DOC>`, wherever they stand in a line, and the fields in them."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from tfde.errors import DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake

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
