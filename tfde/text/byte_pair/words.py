"""GPT-2's way of cutting a text into words, as graph ops on code points.

GPT-2 cuts by the regular expression
`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.
The regular expressions of TensorFlow (RE2) have no look-ahead and other Unicode tables; but
whether a word begins at a character follows from its neighbours' kinds:

- where the kind (letter, number, white space, other) changes, but not after a blank, which the
  word that follows it takes along;
- with the last character of white space before something else (the look-ahead);
- with an apostrophe that begins a contraction, and after that contraction. It does so unless
  the word began before it, with a blank or another character that is neither letter nor number.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from tfde.text.code_points import CodePointTable, category, code_points

_OTHER, _LETTER, _NUMBER, _SPACE = range(4)
_BLANK, _APOSTROPHE = ord(" "), ord("'")
_CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")
# White space of Unicode, which Python's str.isspace() widens by U+001C to U+001F.
_WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
# Letters and numbers of Unicode 16, which `tokenizers` 0.23.3 knows, that our tables
# (Unicode 14) lack; a test asks it about every code point.
_NEW_LETTERS = (
    "1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 1123F-11240"
    " 11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10"
    " 11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D 16D40-16D6C 18CFF 1B132 1B155"
    " 1DF25-1DF2A 1E030-1E06D 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF"
)
_NEW_NUMBERS = (
    "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9"
    " 1D2C0-1D2D3 1E4F0-1E4F9 1E5F1-1E5FA"
)


class Gpt2Words(tf.Module):
    """Cuts texts into GPT-2's words; all words together are the text."""

    def __init__(self) -> None:
        super().__init__(name="gpt2_words")
        self._kinds = CodePointTable(_kinds())

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the words of texts.

        Args:
            texts: UTF-8 strings, shape (B,), string; other bytes become U+FFFD.

        Returns:
            Words, shape (B, None), string.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        starts = tf.where(self._starts(codes))[:, 0]
        ends = tf.concat([starts, tf.size(codes.flat_values, tf.int64)[None]], 0)
        words = tf.RaggedTensor.from_row_splits(codes.flat_values, ends, validate=False)
        return tf.RaggedTensor.from_row_splits(
            tf.strings.unicode_encode(words, "UTF-8"),
            tf.searchsorted(ends, codes.row_splits, out_type=tf.int64),
            validate=False,
        )

    def _starts(self, codes: tf.RaggedTensor) -> tf.Tensor:
        """Returns for each code point whether a word begins with it, shape (N,), bool."""
        values = codes.flat_values
        size = tf.size(values, tf.int64)
        kinds = self._kinds(values)
        first = _at(codes.row_splits, size)
        last = tf.concat([first[1:], [True]], 0)[:size]
        before = tf.concat([[_OTHER], kinds], 0)[:size]
        after = tf.concat([kinds[1:], [_SPACE]], 0)[:size]
        after_blank = tf.concat([[False], values == _BLANK], 0)[:size] & ~first
        starts = first | ((kinds != before) & ~after_blank)
        starts |= (kinds == _SPACE) & (after != _SPACE) & ~last
        apostrophe = (values == _APOSTROPHE) & (first | ((before != _OTHER) & ~after_blank))
        return tf.cond(
            tf.reduce_any(apostrophe),
            lambda: _cut_contractions(values, starts, first, apostrophe),
            lambda: starts,
        )


def _cut_contractions(
    values: tf.Tensor, starts: tf.Tensor, first: tf.Tensor, apostrophe: tf.Tensor
) -> tf.Tensor:
    """Returns the starts of words, given where a contraction's apostrophe could stand."""
    size = tf.size(values, tf.int64)
    padding = tf.fill([3], -1)
    # A row's end stops a contraction as any other character does.
    places = tf.where(apostrophe)[:, 0]
    letters = tf.gather(tf.concat([values, padding], 0), places[:, None] + [1, 2])
    breaks = tf.gather(tf.concat([first, [True] * 3], 0), places[:, None] + [1, 2])
    letters = tf.where(breaks | (tf.cumsum(tf.cast(breaks, tf.int32), axis=1) > 0), -1, letters)
    lengths = tf.zeros_like(places)
    for contraction in _CONTRACTIONS:
        wanted = tf.constant([ord(c) for c in contraction])
        found = tf.reduce_all(letters[:, : len(contraction)] == wanted, axis=1)
        lengths = tf.where(found, tf.constant(len(contraction), tf.int64), lengths)
    places, lengths = places[lengths > 0], lengths[lengths > 0]
    inside = _at(places + 1, size)
    return (starts & ~inside) | _at(places + lengths + 1, size)


def _at(places: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns `size` values that are true at the places; a place may be `size` itself."""
    ones = tf.ones_like(places)
    return tf.scatter_nd(places[:, None], ones, size[None] + 1)[:-1] > 0


@functools.lru_cache
def _kinds() -> np.ndarray:
    """Returns the kind of each code point, shape (0x110000,), int8."""
    kinds = np.full(0x110000, _OTHER, np.int8)
    for code in range(0x110000):
        group = category(chr(code))[0]
        if group in "LN":
            kinds[code] = _LETTER if group == "L" else _NUMBER
    kinds[[ord(c) for c in _WHITE_SPACE]] = _SPACE
    for kind, ranges in ((_LETTER, _NEW_LETTERS), (_NUMBER, _NEW_NUMBERS)):
        kinds[list(code_points(ranges))] = kind
    return kinds
