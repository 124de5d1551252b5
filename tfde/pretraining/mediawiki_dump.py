"""The XML that MediaWiki exports, page by page, at the memory of one page.

A dump is cut at `<page>` and `</page>` before it is parsed: MediaWiki escapes `<` in texts and
writes neither comments nor CDATA, so these bytes stand nowhere else. That way a page that is
broken is left alone, its line is known, and the next one is found again.
"""

from __future__ import annotations

import bz2
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from tfde.errors import DataError
from tfde.storage.compressed import COMPRESSION_ERRORS, compression_error, open_binary
from tfde.storage.intake import Intake

MAX_PAGE_BYTES = 1 << 26

_BLOCK_BYTES = 1 << 20
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"
_NAMESPACE = re.compile(r"-?[0-9]{1,9}")
_REDIRECT = re.compile(r"\s*#\s*\w+\s*:?\s*\[\[([^\]|#]+)")
_REDIRECT_WORD = re.compile(r"\s*#\s*redirect\b", re.IGNORECASE)


class DumpPage(NamedTuple):
    """A page as the dump has it: where it begins, and the wikitext of its last revision."""

    line: int
    number: int
    title: str
    namespace: int
    redirect: str | None
    text: str
    is_wikitext: bool


@dataclass(frozen=True)
class SiteInfo:
    """What the head of a dump says of the wiki.

    Attributes:
        first_letter: Whether the first letter of a title is always a capital.
        namespaces: Number of each namespace by its name in small letters; English names count
            beside the wiki's own.
    """

    first_letter: bool = True
    namespaces: dict[str, int] = field(default_factory=dict)


# Names that MediaWiki understands in every wiki.
# Source: https://www.mediawiki.org/wiki/Help:Namespaces
_CANONICAL = {
    "media": -2,
    "special": -1,
    "talk": 1,
    "user": 2,
    "user talk": 3,
    "project": 4,
    "project talk": 5,
    "file": 6,
    "image": 6,
    "file talk": 7,
    "mediawiki": 8,
    "mediawiki talk": 9,
    "template": 10,
    "template talk": 11,
    "help": 12,
    "help talk": 13,
    "category": 14,
    "category talk": 15,
}


def read_site(path: str | Path) -> SiteInfo:
    """Returns what the head of a dump says; what it does not say is as in Wikipedia.

    Raises:
        DataError: the file is no MediaWiki export, or packed otherwise than its name says.
    """
    head, fault = b"", None
    with _open(path) as file:
        try:
            while _OPEN not in head and len(head) < _BLOCK_BYTES and (block := file.read1(1 << 14)):
                head += block
        except (*COMPRESSION_ERRORS, OSError) as error:
            # Where the head is whole, this is for the reader of the pages to say.
            fault = error
    if b"<mediawiki" not in head:
        if fault is not None:
            raise _compression_error(path, 1, fault) from fault
        rule = "must be a MediaWiki export: XML that begins with <mediawiki."
        raise DataError(path, 1, rule, head[:40])
    found = re.search(rb"<siteinfo>.*?</siteinfo>", head, re.DOTALL)
    namespaces = dict(_CANONICAL)
    case = "first-letter"
    if found:
        try:
            site = ET.fromstring(found[0])
        except ET.ParseError as error:
            raise DataError(path, 1, f"<siteinfo> must be well-formed XML ({error}).") from error
        case = site.findtext("case") or case
        for entry in site.iterfind("namespaces/namespace"):
            if entry.text:
                key = entry.get("key", "0")
                if not _NAMESPACE.fullmatch(key):
                    raise DataError(path, 1, "the key of a namespace must be an integer.", key)
                namespaces[entry.text.lower()] = int(key)
    return SiteInfo(case == "first-letter", namespaces)


def read_dump(path: str | Path, site: SiteInfo, intake: Intake) -> Iterator[DumpPage]:
    """Yields the pages of all namespaces, redirects too, in the dump's order.

    Raises:
        DataError: a page is not well-formed, not UTF-8, lacks title or id, or is larger than
            `MAX_PAGE_BYTES` (a dump of histories); the dump is cut; the packed stream is damaged.
    """
    for line, element in _elements(path, intake):
        try:
            yield _dump_page(path, line, element, site)
        except DataError as error:
            intake.bad(error, "broken page")


def _dump_page(path: str | Path, line: int, element: bytes, site: SiteInfo) -> DumpPage:
    try:
        page = ET.fromstring(element)
    except ET.ParseError as error:
        place = line + error.position[0] - 1
        reason = str(error).partition(":")[0]
        raise DataError(path, place, f"must be well-formed XML in UTF-8 ({reason}).") from error
    title, number = page.findtext("title") or "", page.findtext("id") or ""
    if not title.strip():
        raise DataError(path, line, "a page must have a <title>.")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        raise DataError(path, line, "a page must have an <id>, a number of 64 bits.", number)
    revisions = page.findall("revision")
    text = (revisions[-1].findtext("text") or "") if revisions else ""
    model = (revisions[-1].findtext("model") or "wikitext") if revisions else "wikitext"
    return DumpPage(
        line,
        int(number),
        title,
        _namespace(page.findtext("ns"), title, site),
        _redirect(page.find("redirect"), text),
        text,
        model == "wikitext",
    )


def _namespace(value: str | None, title: str, site: SiteInfo) -> int:
    if value is not None:
        return int(value) if _NAMESPACE.fullmatch(value) else -1
    # Before version 0.6 of the format only the title says it.
    prefix, colon, _ = title.partition(":")
    return site.namespaces.get(prefix.lower(), 0) if colon else 0


def _redirect(element: ET.Element | None, text: str) -> str | None:
    """Returns where a page leads on to; before version 0.6 only its text says it."""
    if element is not None and element.get("title"):
        return element.get("title")
    if element is not None or _REDIRECT_WORD.match(text):
        found = _REDIRECT.match(text)
        return found[1] if found else ""
    return None


def _elements(path: str | Path, intake: Intake) -> Iterator[tuple[int, bytes]]:
    """Yields every `<page>...</page>` with the line it begins in."""
    # `line` is that of `place`, where the bytes begin that were not yet looked at.
    buffer, place, line, ended = b"", 0, 1, False
    with _open(path) as file:
        while True:
            start = buffer.find(_OPEN, place)
            stop = buffer.find(_CLOSE, start) if start >= 0 else -1
            if stop >= 0:
                line += buffer.count(b"\n", place, start)
                place = stop + len(_CLOSE)
                element = buffer[start:place]
                # A second beginning: the first page was cut, by a damaged block for instance.
                again = element.rfind(_OPEN)
                if again > 0:
                    rule = "a <page> must end before the next."
                    intake.bad(DataError(path, line, rule), "cut page")
                yield line + element.count(b"\n", 0, again), element[again:]
                line += element.count(b"\n")
                continue
            ended = ended or (start < 0 and _END in buffer[place:])
            # The end of what was read may be the beginning of a tag.
            kept = start if start >= 0 else max(place, len(buffer) - len(_END) + 1)
            line += buffer.count(b"\n", place, kept)
            buffer, place = buffer[kept:], 0
            if len(buffer) > MAX_PAGE_BYTES:
                rule = (
                    f"a page must be at most {MAX_PAGE_BYTES >> 20} MiB (a dump of current"
                    " revisions, not of histories)."
                )
                intake.bad(DataError(path, line, rule), "page too large")
                line += buffer.count(b"\n")
                buffer = b""
            try:
                block = file.read1(_BLOCK_BYTES)
            except (*COMPRESSION_ERRORS, OSError) as error:
                line += buffer.count(b"\n")
                intake.bad(_compression_error(path, line, error), "damaged compression")
                return
            if not block:
                break
            buffer += block
    if buffer.startswith(_OPEN):
        rule = "the dump is cut inside a page that begins in this line (no </page>)."
        intake.bad(DataError(path, line, rule), "cut dump")
    elif not ended:
        rule = "the dump is cut in this line (no </mediawiki>)."
        intake.bad(DataError(path, line + buffer.count(b"\n"), rule), "cut dump")


def _open(path: str | Path) -> io.BufferedIOBase:
    path = Path(path)
    if path.suffix == ".bz2":
        return bz2.open(path, "rb")
    return cast(io.BufferedIOBase, open_binary(path))


def _compression_error(path: str | Path, line: int, error: Exception) -> DataError:
    if Path(path).suffix == ".bz2":
        return DataError(path, line, f"the bzip2 stream must be whole ({error}).")
    return compression_error(path, line, error)
