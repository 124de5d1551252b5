"""BERT's normalizer as graph ops on code points."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from tfde.text.code_points import CodePointTable
from tfde.text.word_piece.characters import (
    CHINESE,
    DROPPED,
    LETTER_FOR_OP_ONLY,
    ORDERED_MARKS,
    SPLIT_BY_OP_ONLY,
    combining_classes,
    normalized_characters,
    stands_alone,
)

# Private-use code points, which BERT drops from texts, are free to mean something here.
_RENAMED = {code: 0xF0000 + i for i, code in enumerate(sorted(SPLIT_BY_OP_ONLY))}
_FOR_OP = _RENAMED | {code: f" {chr(code)} " for code in LETTER_FOR_OP_ONLY}
UNKNOWN = 0xF2000  # stands for a word that is too long
_NO_TEXT_HAS_THIS = "\U0010fffd"  # private use, too
_LETTER, _ALONE, _ORDERED_MARK = range(3)


def vocabulary_of_op(
    vocabulary: Sequence[str], *, unknown_token: str, special_tokens: Collection[str]
) -> list[str]:
    """Returns a vocabulary for FastWordpieceTokenizer, in the characters of `BertNormalizer`.

    Args:
        vocabulary: The tokens in the order of their ids.
        unknown_token: One of them, which stays as it is.
        special_tokens: Those that are found in texts before the op gets them.
    """
    result = []
    for index, token in enumerate(vocabulary):
        if token == unknown_token:
            result.append(token)
        elif token in special_tokens or max(token) >= "\U000f0000":
            # Private use is dropped from texts, and stands for something else afterwards.
            result.append(f"{_NO_TEXT_HAS_THIS}{index}")
        else:
            result.append(token.translate(_RENAMED))
    return result


class BertNormalizer(tf.Module):
    """Texts to normalized texts that FastWordpieceTokenizer splits as BERT splits words.

    Words that are too long become a private-use character, and characters that the op would
    split off, but BERT does not, become others.

    Args:
        lowercase: Whether letters become lower case.
        strip_accents: Whether texts are decomposed and non-spacing marks dropped.
        max_characters_per_word: Longer words become unknown.
    """

    def __init__(
        self,
        *,
        lowercase: bool,
        strip_accents: bool,
        max_characters_per_word: int,
    ) -> None:
        super().__init__(name="bert_normalizer")
        self._limit = max_characters_per_word
        entries, flat, splits = _tables(lowercase=lowercase, strip_accents=strip_accents)
        self._entries = CodePointTable(entries)
        self._flat, self._splits = tf.constant(flat), tf.constant(splits)
        self._kinds = CodePointTable(_kinds(orders_marks=strip_accents))
        self._orders_marks = strip_accents
        if strip_accents:
            self._classes = CodePointTable(_classes())

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns normalized texts.

        Args:
            texts: UTF-8 strings, shape (B,), string.

        Returns:
            What FastWordpieceTokenizer is to split, shape (B,), string.
        """
        values, row_splits, kinds = self._ordered(texts)
        return _encoded(self._hide_long_words(values, row_splits, kinds == _ALONE), row_splits)

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns normalized texts in which no word is too long yet, shape (B,), string.

        Args:
            texts: UTF-8 strings, shape (B,), string.
        """
        values, row_splits, _ = self._ordered(texts)
        return _encoded(values, row_splits)

    def hide_long_words(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns what FastWordpieceTokenizer is to split, shape (B,), string.

        Args:
            texts: Parts of what `normalize` gives, shape (B,), string.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        alone = self._kinds(codes.flat_values) == _ALONE
        values = self._hide_long_words(codes.flat_values, codes.row_splits, alone)
        return _encoded(values, codes.row_splits)

    def _ordered(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns normalized code points, where rows begin in them, and their kinds."""
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        values, row_splits, kinds = self._normalize(codes)
        if self._orders_marks:
            values, row_splits, kinds = tf.cond(
                tf.reduce_any(kinds == _ORDERED_MARK),
                lambda: self._normalize(self._order_marks(codes)),
                lambda: (values, row_splits, kinds),
            )
        return values, row_splits, kinds

    def _order_marks(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
        """Puts runs of marks in NFD's order; rare, as nearly all marks are dropped."""
        # What is dropped before NFD does not part two marks.
        classes = self._classes(codes.flat_values)
        codes = tf.ragged.boolean_mask(codes, codes.with_values(classes >= 0))
        classes = tf.boolean_mask(classes, classes >= 0)
        begins = (classes == 0) | _row_starts(codes.row_splits, tf.size(classes, tf.int64))
        runs = tf.cumsum(tf.cast(begins, tf.int64))
        order = tf.argsort(runs * 256 + tf.cast(classes, tf.int64), stable=True)
        return codes.with_values(tf.gather(codes.flat_values, order))

    def _normalize(self, codes: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replaces each code point by what the table says: none, one or several.

        Returns:
            Code points, where rows begin in them, and their kinds.
        """
        entries = self._entries(codes.flat_values)

        def spread() -> tuple[tf.Tensor, tf.Tensor]:
            row = tf.maximum(-entries - 1, 0)
            inside = tf.gather(self._splits, row)
            several = entries < 0
            lengths = tf.where(several, tf.gather(self._splits, row + 1) - inside, 1)
            count = tf.size(self._flat)
            starts = tf.where(several, inside, count + tf.range(tf.size(entries)))
            where = tf.ragged.range(starts, starts + lengths).flat_values
            splits = tf.concat([[0], tf.cumsum(tf.cast(lengths, tf.int64))], 0)
            values = tf.gather(tf.concat([self._flat, entries], 0), where)
            return values, tf.gather(splits, codes.row_splits)

        values, row_splits = tf.cond(
            tf.reduce_any(entries < 0), spread, lambda: (entries, codes.row_splits)
        )
        return values, row_splits, self._kinds(values)

    def _hide_long_words(
        self, values: tf.Tensor, row_splits: tf.Tensor, alone: tf.Tensor
    ) -> tf.Tensor:
        """Replaces words of more than the limit's characters by `UNKNOWN` and blanks."""
        size = tf.size(values, tf.int64)
        ends = tf.concat([[-1], tf.where(alone)[:, 0], [size]], 0)
        # Words of neighbouring rows count as one here: cheap, and never too few.
        longest = tf.reduce_max(ends[1:] - ends[:-1]) - 1

        def hidden() -> tf.Tensor:
            word = tf.cumsum(tf.cast(alone | _row_starts(row_splits, size), tf.int32))
            letters = tf.cast(~alone, tf.int32)
            length = tf.gather(tf.math.segment_sum(letters, word), word)
            position = tf.cumsum(letters) * letters
            first = position == tf.gather(
                tf.math.segment_min(tf.where(alone, tf.int32.max, position), word), word
            )
            too_long = ~alone & (length > self._limit)
            return tf.where(too_long, tf.where(first, UNKNOWN, ord(" ")), values)

        return tf.cond(longest > self._limit, hidden, lambda: values)


def _encoded(values: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    codes = tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
    return tf.strings.unicode_encode(codes, "UTF-8")


def _row_starts(row_splits: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns for each of `size` values whether a row begins with it."""
    ones = tf.ones_like(row_splits)
    return tf.scatter_nd(row_splits[:, None], ones, size[None] + 1)[:-1] > 0


@functools.lru_cache
def _kinds(*, orders_marks: bool) -> np.ndarray:
    """Returns for each code point of a normalized text how words and marks depend on it."""
    kinds = np.full(0x110000, _LETTER, np.int8)
    kinds[[c for c in range(0x20000) if stands_alone(c)]] = _ALONE
    kinds[list(CHINESE)] = _ALONE
    if orders_marks:
        kinds[list(ORDERED_MARKS)] = _ORDERED_MARK
    return kinds


@functools.lru_cache
def _classes() -> np.ndarray:
    """Returns the combining class of each code point of a raw text; -1 where it is dropped."""
    classes = np.zeros(0x110000, np.int32)
    for code, value in combining_classes().items():
        classes[code] = value
    classes[list(DROPPED)] = -1
    return classes


@functools.lru_cache
def _tables(*, lowercase: bool, strip_accents: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what becomes of each code point.

    Returns:
        For each code point the one that replaces it, or `-1 - row`; the rows' code points; and
        where each row begins in them.
    """
    entries = np.arange(0x110000, dtype=np.int32)
    changed = normalized_characters(lowercase=lowercase, strip_accents=strip_accents)
    for code in SPLIT_BY_OP_ONLY | LETTER_FOR_OP_ONLY:
        changed.setdefault(code, chr(code))
    rows: dict[str, int] = {"": 0}
    entries[list(DROPPED)] = -1
    for code, text in changed.items():
        if len(text) == 3 and text[1:2] and ord(text[1]) in CHINESE:
            text = text[1]  # the op splits it off without the blanks
        text = text.translate(_FOR_OP)
        if len(text) == 1:
            entries[code] = ord(text)
        else:
            entries[code] = -1 - rows.setdefault(text, len(rows))
    flat = np.array([ord(c) for text in rows for c in text], np.int32)
    splits = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return entries, flat, splits
