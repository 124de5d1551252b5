"""The links of a page store: for each page those that link to it, and in which passages."""

from __future__ import annotations

import itertools
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tfde.pretraining.page_store import NUMBER, RaggedColumn, RaggedWriter

# A link: the key of the page that it leads to, and the passage of its page, -1 = not known.
LINK = np.dtype([("target", "<i8"), ("passage", "<i4")])
MAX_PASSAGES = 16  # of a page that names another one: the first ones
# What tells pages of one name apart: "Mercury (planet)".
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")


def write_links(
    directory: Path, sources: np.ndarray, targets: np.ndarray, passages: np.ndarray
) -> dict[str, int]:
    """Writes the columns `in_links` and `link_passages` of a store that has all others.

    Args:
        directory: The store.
        sources: The page of each link, (N,).
        targets: The page that it leads to, (N,).
        passages: The passage of the page that it stands in, -1 where that is not known, (N,).

    Returns:
        `links`, how many pairs of pages; `links_in_passages`, of how many of them a passage is
        known; `links_by_title`, how many of the others have a passage that names the title.
    """
    order = np.lexsort((passages, sources, targets))
    sources, targets, passages = sources[order], targets[order], passages[order]
    first = np.ones(len(sources), bool)
    first[1:] = (np.diff(targets) != 0) | (np.diff(sources) != 0)
    links = np.cumsum(first) - 1  # which pair of pages each row is of
    sources, targets = sources[first], targets[first]
    known = passages >= 0
    unknown = np.flatnonzero(passages[first] < 0)
    places, named = _naming_passages(directory, sources[unknown], targets[unknown])
    links = np.concatenate([links[known], unknown[places]])
    passages = np.concatenate([passages[known], named])
    passages = passages[np.argsort(links, kind="stable")]
    pages = len(RaggedColumn(directory, "titles"))
    for name, numbers, row_of, rows in (
        ("in_links", sources, targets, pages),
        ("link_passages", passages, links, len(sources)),
    ):
        with RaggedWriter(directory, name) as writer:
            lengths = np.bincount(row_of, minlength=rows)
            writer.append(lengths.tolist(), numbers.astype(NUMBER).tobytes())
    return {
        "links": len(sources),
        "links_in_passages": len(sources) - len(unknown),
        "links_by_title": len(np.unique(places)),
    }


def _naming_passages(
    directory: Path, sources: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns numbers of links and passages of their page that name where they lead, ascending.

    Args:
        directory: The store.
        sources: The page of each link.
        targets: The page that it leads to.
    """
    titles = RaggedColumn(directory, "titles")
    texts = RaggedColumn(directory, "texts")
    page_passages = RaggedColumn(directory, "page_passages").starts
    found, passages = array("q"), array("q")
    by_source = np.argsort(sources, kind="stable").tolist()
    for source, links in itertools.groupby(by_source, key=lambda link: int(sources[link])):
        start, stop = page_passages[source : source + 2].tolist()
        parts = [texts.text(number).casefold() for number in range(start, stop)]
        text = "\n".join(parts)
        ends = list(itertools.accumulate(len(part) + 1 for part in parts))
        naming: dict[str, list[int]] = {}
        for link in links:
            title = _QUALIFIER.sub("", titles.text(int(targets[link]))).casefold()
            if title not in naming:
                places = (bisect_right(ends, place) for place in _places(text, title))
                first = itertools.islice(itertools.groupby(places), MAX_PASSAGES)
                naming[title] = [number for number, _ in first]
            found.extend([link] * len(naming[title]))
            passages.extend(naming[title])
    return np.array(found, np.int64), np.array(passages, np.int64)


def _places(text: str, title: str) -> Iterator[int]:
    """Yields where `title` begins in `text`, as words of their own."""
    place = text.find(title) if title else -1
    while place >= 0:
        end = place + len(title)
        if not text[place - 1 : place].isalnum() and not text[end : end + 1].isalnum():
            yield place
        place = text.find(title, end)
