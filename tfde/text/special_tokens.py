"""Special tokens that raw texts spell out, as Hugging Face's tokenizers recognise them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tft

from tfde.errors import require

# Unicode's White_Space and the word characters of UTS 18; RE2's \s and \w are ASCII only.
SPACE = r"[\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]"
_WORD = (
    r"[\pL\pM\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}"
    r"\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]"
)
_ANY = r"\C*"  # bytes, so that texts that are not UTF-8 match too
_NONE = -1


class SpecialToken(NamedTuple):
    """What a spelled-out token gives, and where it counts.

    Attributes:
        id: The token id.
        lstrip: Whether white space before it belongs to it.
        rstrip: Whether white space after it belongs to it.
        single_word: Whether it counts only where no letter, mark or digit touches it.
    """

    id: int
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class SpecialTokens(tf.Module):
    """Cuts texts at the special tokens that they spell out.

    Tokens are found from left to right, the longest first, in the raw text. What lies between
    them is tokenized apart, as a text of its own. Batches without any token cost one regular
    expression more.

    Args:
        tokens: The special tokens by their spelling.

    Raises:
        ConfigError: a spelling is empty, or not one UTF-8 can hold.

    Source: behaviour of the `tokenizers` library, added tokens with `normalized=False`.
    """

    def __init__(self, tokens: Mapping[str, SpecialToken]) -> None:
        super().__init__(name="special_tokens")
        for spelling in tokens:
            holds = spelling != "" and not any("\ud800" <= c <= "\udfff" for c in spelling)
            require(holds, "tokens", "spelled in one or more Unicode characters", spelling)
        self._spellings = tuple(tokens)
        self._tokens = tuple(tokens.values())
        # RE2 takes the first alternative that matches: longest first.
        self._pattern = "|".join(map(escaped, sorted(tokens, key=len, reverse=True)))

    def tokenize(
        self, texts: tf.Tensor, tokenize_chunks: Callable[[tf.Tensor], tf.RaggedTensor]
    ) -> tf.RaggedTensor:
        """Returns the token ids of texts, special tokens included.

        Args:
            texts: UTF-8 strings, shape (B,), string.
            tokenize_chunks: Gives the ids, shape (N, None), int32, of strings without special
                tokens, shape (N,).

        Returns:
            Token ids, shape (B, None), int32.
        """
        if not self._spellings:
            return tokenize_chunks(texts)
        found = tf.reduce_any(
            tf.strings.regex_full_match(texts, f"{_ANY}(?:{self._pattern}){_ANY}")
        )
        pieces, numbers, lengths = tf.cond(
            found,
            lambda: self._split(texts),
            lambda: (texts, tf.fill(tf.shape(texts), _NONE), tf.ones_like(texts, tf.int64)),
        )
        chunks = tokenize_chunks(tf.boolean_mask(pieces, numbers == _NONE))
        values, splits = tf.cond(
            found,
            lambda: self._joined(chunks, numbers, lengths),
            lambda: (chunks.values, tf.cast(chunks.row_splits, tf.int64)),
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def _split(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the pieces of all texts in a row, which tokens they are, and pieces a text."""
        ragged = tft.regex_split(_without_nul(texts), self._pattern, self._pattern)
        rows, pieces = ragged.value_rowids(), _with_nul(ragged.values)
        is_token = pieces[:, None] == tf.constant(self._spellings)[None]
        numbers = tf.where(
            tf.reduce_any(is_token, 1), tf.argmax(is_token, 1, tf.int32), tf.constant(_NONE)
        )
        if any(token.single_word for token in self._tokens):
            pieces, numbers, rows = self._without_parts_of_words(pieces, numbers, rows)
        pieces = self._stripped(pieces, numbers, rows)
        keep = pieces != ""
        rows = tf.boolean_mask(rows, keep)
        lengths = tf.math.bincount(tf.cast(rows, tf.int32), minlength=tf.size(texts))
        return (
            tf.boolean_mask(pieces, keep),
            tf.boolean_mask(numbers, keep),
            tf.cast(lengths[: tf.size(texts)], tf.int64),
        )

    def _without_parts_of_words(
        self, pieces: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Makes tokens that must stand alone, but do not, part of the text around them."""
        before, after = _neighbours_of_one_row(rows)
        touched = (before & _shifted(tf.strings.regex_full_match(pieces, f"{_ANY}{_WORD}"), 1)) | (
            after & _shifted(tf.strings.regex_full_match(pieces, f"{_WORD}{_ANY}"), -1)
        )
        numbers = tf.where(touched & self._option("single_word", numbers), _NONE, numbers)
        # Texts in a row become one.
        joins = before & (numbers == _NONE) & _shifted(numbers == _NONE, 1)
        groups = tf.cumsum(tf.cast(~joins, tf.int32)) - 1
        firsts = tf.boolean_mask(tf.range(tf.size(pieces)), ~joins)
        joined = tf.strings.reduce_join(
            tf.RaggedTensor.from_value_rowids(pieces, groups, validate=False), axis=1
        )
        return joined, tf.gather(numbers, firsts), tf.gather(rows, firsts)

    def _stripped(self, pieces: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Takes the white space off texts beside tokens that it belongs to."""
        before, after = _neighbours_of_one_row(rows)
        is_text = numbers == _NONE
        for option, neighbour, there, pattern in (
            ("lstrip", -1, after, f"{SPACE}+$"),
            ("rstrip", 1, before, f"^{SPACE}+"),
        ):
            if any(getattr(token, option) for token in self._tokens):
                strip = is_text & there & _shifted(self._option(option, numbers), neighbour)
                pieces = tf.where(strip, tf.strings.regex_replace(pieces, pattern, ""), pieces)
        return pieces

    def _joined(
        self, chunks: tf.RaggedTensor, numbers: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns values and row splits of the texts' ids from those of their pieces."""
        is_text = numbers == _NONE
        ids = tf.gather([token.id for token in self._tokens], tf.boolean_mask(numbers, ~is_text))
        rows = tf.concat([chunks.with_row_splits_dtype(tf.int64), ids[:, None]], 0)
        # The texts' rows stand first, then those of the tokens.
        of_text, of_token = (tf.cumsum(tf.cast(x, tf.int32)) - 1 for x in (is_text, ~is_text))
        places = tf.where(is_text, of_text, of_token + tf.cast(chunks.nrows(), tf.int32))
        ordered = tf.gather(rows, places)
        of_pieces = tf.concat([[0], tf.cumsum(lengths)], 0)
        return ordered.values, tf.gather(ordered.row_splits, of_pieces)

    def _option(self, name: str, numbers: tf.Tensor) -> tf.Tensor:
        """Returns whether the tokens have an option; false for text."""
        values = tf.constant([*(bool(getattr(token, name)) for token in self._tokens), False])
        return tf.gather(values, tf.where(numbers == _NONE, len(self._tokens), numbers))


def escaped(spelling: str) -> str:
    """Returns a regular expression of RE2 that matches a string."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in spelling)


def _without_nul(texts: tf.Tensor) -> tf.Tensor:
    """Writes U+0000 otherwise, as tensorflow_text's regex_split ends a text there."""
    texts = tf.strings.regex_replace(texts, r"\x{10FFFE}", "\U0010fffe\x01")
    return tf.strings.regex_replace(texts, r"\x00", "\U0010fffe\x02")


def _with_nul(texts: tf.Tensor) -> tf.Tensor:
    texts = tf.strings.regex_replace(texts, r"\x{10FFFE}\x02", "\x00")
    return tf.strings.regex_replace(texts, r"\x{10FFFE}\x01", "\U0010fffe")


def _shifted(values: tf.Tensor, by: int) -> tf.Tensor:
    """Returns each element's neighbour before (`by` 1) or after (-1) it."""
    return tf.roll(values, by, 0)


def _neighbours_of_one_row(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns whether the pieces before and after belong to the same text."""
    same = rows[1:] == rows[:-1]
    no = tf.zeros_like(rows[:1], tf.bool)
    return tf.concat([no, same], 0), tf.concat([same, no], 0)
