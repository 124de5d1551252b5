"""From MediaWiki's markup to sections of plain paragraphs, and the titles it links to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tfde.data.pages import Section
from tfde.environment import require_extra
from tfde.pretraining.plain_text import link_mark, plain_sections, unmarked, without_marks

if TYPE_CHECKING:
    from mwparserfromhell.wikicode import Wikicode

# Sections that list sources; in other languages they stay.
_APPARATUS_NAMES = """
references|notes|footnotes|citations|notes and references|references and notes|sources|
bibliography|works cited|further reading|external links|see also
"""
_APPARATUS = frozenset(_APPARATUS_NAMES.replace("\n", "").split("|"))
# What a reader does not see as running text.
_HIDDEN_NAMES = """
ref references gallery math chem ce timeline score graph imagemap categorytree inputbox
templatedata section templatestyles table style script hiero syntaxhighlight source pre
mapframe maplink indicator includeonly
"""
_HIDDEN_TAGS = frozenset(_HIDDEN_NAMES.split())
# "fr:Pomme" as such links are written; "CSI: Miami" and "Re:Zero" are articles.
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:[^\s:]")
_FILE, _CATEGORY = 6, 14
# A wiki has other names for its files than its dump says ("Bild" beside "Datei").
_MEDIA = re.compile(
    r"\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|pdf|djvu|og[agv]|opus|flac|wav|mp[34]|midi?|webm|stl)$",
    re.IGNORECASE,
)
_LEFTOVERS = (
    # __NOTOC__ and its kin; __FILE__ is text.
    (
        re.compile(
            r"__(?:(?:NO|FORCE)?TOC|NOEDITSECTION|(?:NO)?NEWSECTIONLINK|NOGALLERY|HIDDENCAT"
            r"|EXPECTUNUSEDCATEGORY|(?:NO)?INDEX|STATICREDIRECT|NO(?:TITLE|CONTENT)CONVERT|NOTC|NOCC"
            r"|DISAMBIG)__"
        ),
        "",
    ),
    # Tags without their other half: MediaWiki shows them, and what comes after.
    (re.compile(r"</?(?:ref|includeonly|noinclude|onlyinclude)\b[^<>\n]*>", re.IGNORECASE), " "),
    # Brackets that held only a template; "main()" held nothing.
    (re.compile(r"[ \t\xa0]+\(\s*(?:[,;:]\s*)*\)|\((?:\s|[,;:])+\)"), ""),
)
_APOSTROPHES = re.compile(r"('{2,})")


class WikiText(NamedTuple):
    """The sections of a page that have text, and what its links name, as written.

    The links of a section's passages are among `links`.
    """

    sections: tuple[Section, ...]
    links: tuple[str, ...]


def parse_wikitext(text: str, namespaces: Mapping[str, int]) -> WikiText:
    """Returns the plain text and the links of a page.

    Templates, tables, files, references and formulas are dropped (what a template would show is
    not in the dump); a link shows its text. Sections that list sources are dropped, their links
    are kept.

    Args:
        text: The markup.
        namespaces: Numbers of the wiki's namespaces by their names in small letters.

    Raises:
        MissingExtraError: mwparserfromhell is not installed.
        ValueError: the markup cannot be parsed.
    """
    require_extra("pages", "reading a MediaWiki dump")
    import mwparserfromhell
    from mwparserfromhell.nodes import Heading
    from mwparserfromhell.parser import ParserError

    try:
        # Unbalanced marks of bold and italic would hide the markup after them; `_clean` drops them.
        code = mwparserfromhell.parse(unmarked(text), skip_style_tags=True)
    except (ParserError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    renderer = _Renderer(namespaces)
    parts: list[tuple[str, list[str]]] = [("", [])]
    for node in code.nodes:
        if isinstance(node, Heading):
            heading = without_marks(_clean(renderer.text(node.title)))
            parts.append((" ".join(heading.split()), []))
        else:
            parts[-1][1].append(renderer.node(node))
    sections = (
        (heading, _clean("".join(pieces)))
        for heading, pieces in parts
        if heading.lower() not in _APPARATUS
    )
    found = plain_sections(sections, renderer.links)
    return WikiText(found, tuple(dict.fromkeys(renderer.links)))


class _Renderer:
    """Turns nodes into what a reader sees, and notes the links on the way."""

    def __init__(self, namespaces: Mapping[str, int]) -> None:
        self.links: list[str] = []
        self._namespaces = namespaces

    def text(self, code: Wikicode | None) -> str:
        return "" if code is None else "".join(map(self.node, code.nodes))

    def node(self, node: object) -> str:
        # By name: importing the classes here would need the package at import.
        kind = type(node).__name__
        show = getattr(self, f"_{kind.lower()}", None)
        return show(node) if show else ""

    def _text(self, node: Any) -> str:
        return str(node.value)

    def _htmlentity(self, node: Any) -> str:
        try:
            return unmarked(str(node.normalize()))
        except (ValueError, OverflowError, KeyError):
            return ""  # no such character

    def _externallink(self, node: Any) -> str:
        return self.text(node.title) if node.brackets else str(node.url)

    def _tag(self, node: Any) -> str:
        name = str(node.tag).strip().lower()
        if name in _HIDDEN_TAGS:
            return ""
        inside = "" if node.self_closing else self.text(node.contents)
        if name in ("br", "hr", "li", "dt", "dd"):
            return f" {inside}"
        return f"\n\n{inside}\n\n" if name in ("p", "div", "blockquote", "center") else inside

    def _wikilink(self, node: Any) -> str:
        target = str(node.title).strip()
        shown = self.text(node.text)
        plain = target.removeprefix(":").strip()
        prefix, colon, _ = plain.partition(":")
        prefix = prefix.strip().replace("_", " ").lower()
        namespace = self._namespaces.get(prefix, 0) if colon else 0
        is_file = namespace == _FILE or (colon and not namespace and _MEDIA.search(plain))
        if (is_file or namespace == _CATEGORY) and not target.startswith(":"):
            return ""
        if not namespace and node.text is None and _LANGUAGE.match(target):
            return ""  # the same page in another language
        if not namespace and not plain.startswith("#"):
            self.links.append(plain)
            return link_mark(len(self.links) - 1) + (shown or plain)
        return shown or plain


def _clean(text: str) -> str:
    text = "\n".join(map(_without_styles, text.split("\n")))
    for pattern, replacement in _LEFTOVERS:
        text = pattern.sub(replacement, text)
    return text


def _without_styles(line: str) -> str:
    """Returns a line without its marks of bold and italic, and with its apostrophes.

    Source: MediaWiki's `Parser::doQuotes`.
    """
    if "''" not in line:
        return line
    parts = _APOSTROPHES.split(line)  # every other one is a run of apostrophes
    # What is no mark of a run of 2, 3 or 5 stands before the mark.
    sizes = [3 if len(run) == 4 else min(len(run), 5) for run in parts[1::2]]
    kept = [len(run) - size for run, size in zip(parts[1::2], sizes, strict=True)]
    bold, italic = (sum(size in (own, 5) for size in sizes) for own in (3, 2))
    if bold % 2 and italic % 2:  # one mark of bold is an apostrophe and a mark of italic
        bolds = [place for place, size in enumerate(sizes) if size == 3]
        if bolds:
            kept[min(bolds, key=lambda place: _rank(parts[2 * place]))] += 1
    ends = ["'" * count for count in kept]
    return "".join(text + end for text, end in zip(parts[::2], [*ends, ""], strict=True))


def _rank(before: str) -> int:
    """Returns when the text before a mark is chosen: a word of one letter, any word, a blank."""
    if before[-1:] == " ":
        return 2
    return 0 if before[-2:-1] == " " else 1
