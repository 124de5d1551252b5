"""Texts that say the same in nearly the same words: one notion for splits and for mining.

A text is the set of its words and of its pairs of neighbouring words, in lower case and without
punctuation. The resemblance of two texts is the size of what both sets share, divided by the size
of both together (Jaccard); from `NEARLY_EQUAL` on they are near duplicates. The search for all
such texts is exact, so that "no test question is nearly a train question" is no matter of chance.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from array import array
from collections.abc import Iterable

import numpy as np
import regex

from tfde.config.negatives import NEARLY_EQUAL

# Scripts that put no space between words: each character counts as a word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Vowel signs and accents that stand by themselves (\p{M}) are of the letter before them.
_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|(?:[^\W{_UNSPACED}]|\p{{M}})+")
_ROUNDING = 1e-9

Shingles = frozenset[str | tuple[str, str]]


def normal_words(text: str) -> list[str]:
    """Returns the words of a text as comparison sees them: NFKC, case folded, no punctuation.

    A text without any letter or digit is split at its white space.
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold()) or text.split()


def shingles(words: Iterable[str]) -> Shingles:
    """Returns the set of the words and of the pairs of neighbouring words."""
    words = list(words)
    return frozenset([*words, *itertools.pairwise(words)])


def resemblance(first: Shingles, second: Shingles) -> float:
    """Returns the share of the shingles of both that both have, in [0, 1].

    Source: Broder 1997, "On the resemblance and containment of documents".
    """
    if not first and not second:
        return 1.0
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


def near_duplicate_groups(texts: Iterable[str], *, threshold: float = NEARLY_EQUAL) -> np.ndarray:
    """Returns which texts belong together: the position of the first text of each one's group.

    Two texts are in one group if they are nearly equal, or if a chain of nearly equal texts leads
    from one to the other; so texts of different groups are never nearly equal. Memory grows with
    the number of words, not of pairs.

    Args:
        texts: The texts, read once.
        threshold: The least resemblance of near duplicates, in (0, 1]; 1 takes equal sets.

    Returns:
        (N,) int64. Whatever the order of the texts, the same ones are together.

    Source:
        Chaudhuri et al. 2006 and Bayardo et al. 2007: sets that are alike share one of their
        rarest members. Xiao et al. 2008: of the smaller set fewer of them need be looked at.
    """
    first_of_words: dict[bytes, int] = {}
    position_of_first: list[int] = []
    row_of_text = array("q")
    codes, starts = array("q"), array("q", [0])
    word_ids: dict[str, int] = {}
    for position, text in enumerate(texts):
        ids = [word_ids.setdefault(word, len(word_ids)) for word in normal_words(text)]
        row = first_of_words.setdefault(array("i", ids).tobytes(), len(position_of_first))
        row_of_text.append(row)
        if row == len(position_of_first):
            position_of_first.append(position)
            pairs = ((a + 1) << 32 | b for a, b in itertools.pairwise(ids))
            codes.extend({*ids, *pairs})
            starts.append(len(codes))
    del first_of_words, word_ids
    tokens = _rarest_first(np.array(codes, np.int64), np.array(starts, np.int64))
    groups = _join(tokens, starts.tolist(), threshold)
    # Rows are numbered in the order of their first texts, so a group's first row holds its first.
    return np.array(position_of_first, np.int64)[groups[np.array(row_of_text, np.int64)]]


def _rarest_first(codes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the sets with their members renumbered by frequency and sorted, rarest first."""
    _, tokens, counts = np.unique(codes, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    tokens = rank[tokens]
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return tokens[np.lexsort((tokens, rows))]


def _join(tokens: np.ndarray, starts: list[int], threshold: float) -> np.ndarray:
    """Returns the first row of each row's group."""
    sizes = np.diff(starts).tolist()
    parents = list(range(len(sizes)))
    # Token -> a row of each group -> its rows that have the token among their rarest, from small
    # to large sets. Of the rows of one group none is compared with another.
    postings: dict[int, dict[int, list[int]]] = {}
    for row in sorted(range(len(sizes)), key=sizes.__getitem__):
        members = tokens[starts[row] : starts[row + 1]].tolist()
        size = len(members)
        # A set that shares `least` members with this one shares one of the first `prefix`.
        least = math.ceil(threshold * size - _ROUNDING)
        prefix = members[: size - least + 1]
        # Larger sets share more with this one, so one of still fewer is among their prefix.
        most = math.ceil(2 * threshold / (1 + threshold) * size - _ROUNDING)
        whole = set(members)
        seen: set[int] = set()
        for place, token in enumerate(prefix):
            groups = postings.setdefault(token, {})
            for group, others in list(groups.items()):
                if _root(parents, group) == _root(parents, row):
                    continue
                if sizes[others[0]] < least:
                    # Too small for this set, and so for all that follow.
                    others[:] = [other for other in others if sizes[other] >= least]
                    if not others:
                        del groups[group]
                for other in others:
                    if other in seen:
                        continue
                    seen.add(other)
                    own = tokens[starts[other] : starts[other + 1]].tolist()
                    if _resembles(whole, own, threshold):
                        low, high = sorted((_root(parents, other), _root(parents, row)))
                        parents[high] = low
                        break  # the others are in the same group
            if place <= size - most:
                groups.setdefault(_root(parents, row), []).append(row)
    return np.array([_root(parents, row) for row in range(len(sizes))], np.int64)


def _resembles(one: set[int], other: list[int], threshold: float) -> bool:
    shared = len(one.intersection(other))
    return shared >= threshold * (len(one) + len(other) - shared) - _ROUNDING


def _root(parents: list[int], row: int) -> int:
    while parents[row] != row:
        parents[row] = parents[parents[row]]
        row = parents[row]
    return row
