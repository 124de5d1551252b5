"""From the titles that a wiki's links name to the numbers of its pages."""

from __future__ import annotations

import html
from array import array
from urllib.parse import unquote

import numpy as np

from tfde.data.ids import key_of

# MediaWiki itself follows one; a chain of more waits for a robot to shorten it.
_MAX_REDIRECTS = 4


class TitleTable:
    """Titles and redirects of a wiki, in 16 bytes each.

    Titles are added first; then they can be looked up.

    Args:
        first_letter: Whether the first letter of a title is always a capital.
    """

    def __init__(self, *, first_letter: bool) -> None:
        self.first_letter = first_letter
        self._titles = _Lookup()
        self._redirects = _Lookup()

    def add_page(self, title: str, number: int) -> None:
        """Adds a page with its number."""
        self._titles.add(self._key(title), number)

    def add_redirect(self, title: str, target: str) -> None:
        """Adds a page that leads on to another one."""
        self._redirects.add(self._key(title), self._key(target))

    def page_number(self, target: str) -> int | None:
        """Returns the number of the page that a link's target names, through redirects."""
        key: int | None = self._key(target)
        for _ in range(1 + _MAX_REDIRECTS):
            if key is None:
                return None
            number = self._titles.get(key)
            if number is not None:
                return number
            key = self._redirects.get(key)
        return None

    def _key(self, title: str) -> int:
        title = unquote(html.unescape(title)).partition("#")[0]
        title = " ".join(title.replace("_", " ").split())
        if self.first_letter:
            title = title[:1].upper() + title[1:]
        return key_of(title)


class _Lookup:
    """Numbers by key, sorted when the first is looked up."""

    def __init__(self) -> None:
        self._keys, self._values = array("q"), array("q")
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)

    def get(self, key: int) -> int | None:
        if self._sorted is None:
            keys = np.array(self._keys, np.int64)
            order = np.argsort(keys, kind="stable")
            self._sorted = keys[order], np.array(self._values, np.int64)[order]
        keys, values = self._sorted
        place = int(np.searchsorted(keys, key))
        return int(values[place]) if place < len(keys) and keys[place] == key else None
