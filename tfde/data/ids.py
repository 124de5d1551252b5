"""Hashes of ids: keys for batches, ids of texts that have none, and the test for duplicates."""

from __future__ import annotations

import hashlib

import numpy as np

from tfde.errors import ConfigError, shorten

_MIN_RECENT = 1 << 16


def key_of(doc_id: str) -> int:
    """Returns the 63-bit key of a document id; never 0, which means "none" in a batch."""
    digest = hashlib.blake2b(doc_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def id_of_text(text: str, *, title: str = "") -> str:
    """Returns the id of a text that comes without one: equal title and text, equal id."""
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    content = f"{len(title)} {title}{text}"
    return "x" + hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def parent_of(doc_id: str, separator: str) -> str:
    """Returns the id of what a document is a part of.

    Args:
        doc_id: The document's, `PARENT` + separator + `PART`; the separator's last place counts.
        separator: What stands between.

    Raises:
        ConfigError: the id is not of this form.
    """
    parent_id, _, _ = doc_id.rpartition(separator)
    if not parent_id:
        raise ConfigError(
            f"parts of documents must have an id PARENT{separator}PART. Received: {shorten(doc_id)}"
        )
    return parent_id


class KnownIds:
    """A set of ids that keeps their keys, not the ids, in about ten bytes each.

    The keys lie in a sorted array; the most recent ones in a small set.
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.int64)
        self._recent: set[int] = set()

    def add(self, value: str) -> bool:
        """Notes an id; returns whether it is new."""
        key = key_of(value)
        if self._has(key):
            return False
        self._recent.add(key)
        # The set may grow with the array, so that all sorting together costs little.
        if len(self._recent) > max(_MIN_RECENT, len(self._sorted) // 16):
            recent = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
            # The stable sort merges what is sorted in one pass.
            self._sorted = np.sort(np.concatenate([self._sorted, recent]), kind="stable")
            self._recent.clear()
        return True

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and self._has(key_of(value))

    def __len__(self) -> int:
        """Returns the number of ids."""
        return len(self._sorted) + len(self._recent)

    def _has(self, key: int) -> bool:
        if key in self._recent:
            return True
        place = np.searchsorted(self._sorted, key)
        return bool(place < len(self._sorted) and self._sorted[place] == key)


def generator_of(seed: int, *names: str) -> np.random.Generator:
    """Returns a random generator that depends on seed and names alone."""
    text = "".join(f"{len(name)} {name}" for name in names)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64([seed, int.from_bytes(digest, "little")]))
