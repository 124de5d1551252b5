"""Unicode 14 on every Python, so that a model reads the same tokens on all of them.

Python 3.11's `unicodedata` is of Unicode 14, 3.12's of 15.0, 3.13's of 15.1. Between these no
character changed; the later ones are those below, made by comparing the three.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

_PAGE = 256


def code_points(text: str) -> Iterator[int]:
    """Yields the code points of `"0041 0061-007A"`."""
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


LATER = frozenset(
    code_points(
        "CF3 ECE 2FFC-2FFF 31EF 10EFD-10EFF 1123F-11241 11B00-11B09 11F00-11F10 11F12-11F3A"
        " 11F3E-11F59 1342F 13439-13455 1B132 1B155 1D2C0-1D2D3 1DF25-1DF2A 1E030-1E06D 1E08F"
        " 1E4D0-1E4F9 1F6DC 1F774-1F776 1F77B-1F77F 1F7D9 1FA75-1FA77 1FA87-1FA88 1FAAD-1FAAF"
        " 1FABB-1FABD 1FABF 1FACE-1FACF 1FADA-1FADB 1FAE8 1FAF7-1FAF8 2B739 2EBF0-2EE5D"
        " 31350-323AF"
    )
)


def category(character: str) -> str:
    """Returns the general category of a character, such as `Lu`; `Cn` of one that came later."""
    return "Cn" if ord(character) in LATER else unicodedata.category(character)


def combining(character: str) -> int:
    """Returns the canonical combining class of a character; 0 of one that came later."""
    return 0 if ord(character) in LATER else unicodedata.combining(character)


def decompose(character: str) -> str:
    """Returns the canonical decomposition (NFD) of a character; itself of one that came later."""
    return character if ord(character) in LATER else unicodedata.normalize("NFD", character)


class CodePointTable(tf.Module):
    """Holds a number for each of the 0x110000 code points: only distinct pages of 256 are kept.

    Args:
        values: The numbers by code point, shape (0x110000,).
    """

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(name="code_point_table")
        pages: dict[bytes, int] = {}
        begins = [
            pages.setdefault(page.tobytes(), len(pages) * _PAGE)
            for page in values.reshape(-1, _PAGE)
        ]
        self._begins = tf.constant(begins, tf.int32)
        self._entries = tf.constant(np.frombuffer(b"".join(pages), values.dtype))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns the number of each code point.

        Args:
            codes: Code points, shape (N,), int32.

        Returns:
            Numbers, shape (N,), of the dtype given.
        """
        begins = tf.gather(self._begins, tf.bitwise.right_shift(codes, 8))
        return tf.gather(self._entries, begins + tf.bitwise.bitwise_and(codes, _PAGE - 1))
