"""Hashes of ids: keys for batches, ids of texts that have none, and the test for duplicates."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np


def key_of(doc_id: str) -> int:
    """Returns the 63-bit key of a document id; never 0, which means "none" in a batch."""
    digest = hashlib.blake2b(doc_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def id_of_text(text: str, *, title: str = "") -> str:
    """Returns the id of a text that comes without one: equal title and text, equal id."""
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    content = f"{len(title)} {title}{text}"
    return "x" + hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


class SeenIds:
    """Tells whether an id came twice, in 8 bytes an id.

    Duplicates are looked for each time the number of ids has doubled and when `has_duplicate` is
    called, so a large corpus is sorted a few times instead of being held as a set of strings.
    """

    def __init__(self) -> None:
        self._keys = array("q")
        self._next_check = 1024

    def add(self, value: str) -> bool:
        """Notes an id; returns whether a duplicate was found by now."""
        self._keys.append(key_of(value))
        if len(self._keys) < self._next_check:
            return False
        self._next_check *= 2
        return self.has_duplicate()

    def has_duplicate(self) -> bool:
        """Returns whether any id noted so far came twice."""
        keys = np.sort(np.array(self._keys, dtype=np.int64))
        return bool((keys[1:] == keys[:-1]).any())


class KnownIds:
    """A set of ids that keeps their keys, not the ids."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def add(self, value: str) -> bool:
        """Notes an id; returns whether it is new."""
        before = len(self._keys)
        self._keys.add(key_of(value))
        return len(self._keys) > before

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and key_of(value) in self._keys

    def __len__(self) -> int:
        """Returns the number of ids."""
        return len(self._keys)
