"""From HTML to sections of plain paragraphs, and what it links to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tfde.data.pages import Section
from tfde.extras import require_extra
from tfde.pretraining.plain_text import join_sections, paragraphs

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

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


class HtmlText(NamedTuple):
    """Title, sections that have text, and what `<a href>` in the text names, as written."""

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
    links: dict[str, None] = {}
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
            pieces.append(_SPACE.sub(" ", node.text_content or ""))
        elif name in _LINES:
            pieces.append(" ")
        elif name in _BLOCKS:
            pieces.append("\n\n")
        elif name == "a" and not closing and (target := node.attributes.get("href")):
            links[target.strip()] = None
    sections = join_sections((words, paragraphs("".join(pieces))) for words, pieces in parts)
    return HtmlText(title, sections, tuple(links))


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
