"""A SentencePiece character map as graph ops, applied as Hugging Face's tokenizers apply it."""

from __future__ import annotations

import struct

import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.code_points import CodePointTable
from tfde.text.sentence_piece.grapheme_characters import (
    CONTROL,
    JOINED,
    OTHER,
    PREPENDED,
    grapheme_kinds,
)

_SHORT = 5  # bytes of the graphemes that are looked up as a whole
_SHIFT = 1 << 21  # more than any code point
# Below, no character joins the one before it.
_FIRST_JOINED = 0x300
_CARRIAGE_RETURN, _LINE_FEED = 0x0D, 0x0A
_SURROGATES = slice(0xD800, 0xE000)


class CharsmapNormalizer(tf.Module):
    """Replaces characters by a SentencePiece character map, as `tokenizers` does.

    The sentencepiece library replaces the longest sequence that the map holds, wherever it is.
    `tokenizers` goes by graphemes: of one that takes at most five bytes the shortest sequence at
    its start is looked up, and its replacement stands for the whole grapheme; of others, and of
    those where nothing is found, each character is looked up alone. They differ on combining
    marks: "e" + U+0302 + U+0301 becomes "ê" there and "ế" with sentencepiece.

    Bytes that are not UTF-8 become U+FFFD first, as in Python.

    Args:
        charsmap: The `precompiled_charsmap` of a SentencePiece model; may be empty.

    Raises:
        ConfigError: `charsmap` is no character map.

    Source: behaviour of `tokenizers` 0.23 (`Precompiled`), tested against it. Not followed: a
        mark of two bytes on one of the few replaced characters that an emoji sequence or an
        Indic conjunct joins to what stands before.
    """

    def __init__(self, charsmap: bytes) -> None:
        super().__init__(name="charsmap_normalizer")
        table = read_charsmap(charsmap, max_bytes=_SHORT)
        # Entry 0 keeps a character as it is.
        entries = {key: number for number, key in enumerate(table, start=1)}
        codes = [[], *([ord(c) for c in value] for value in table.values())]
        self._lengths = tf.constant([1, *map(len, codes[1:])], tf.int64)
        starts = np.cumsum([0, *map(len, codes)])[:-1]
        self._starts = tf.constant(starts, tf.int64)
        self._codes = tf.constant([*(c for row in codes for c in row), 0], tf.int32)
        singles = np.zeros(0x110000, "int32")
        sequences = {}
        for key, number in entries.items():
            if len(key) == 1:
                singles[ord(key)] = number
            else:
                sequences[_packed(key)] = number
        self._singles = CodePointTable(singles)
        self._kinds = CodePointTable(grapheme_kinds())
        ordered = sorted(sequences)
        # One that no text has, so that the search always has something to hit.
        self._sequences = tf.constant([*ordered, np.iinfo("int64").max], tf.int64)
        self._sequence_entries = tf.constant([*(sequences[k] for k in ordered), 0], tf.int32)
        # Characters that stay as they are and join no other: texts of them alone are the most.
        kept = (singles == 0) & (grapheme_kinds() == OTHER)
        kept[:_FIRST_JOINED] = singles[:_FIRST_JOINED] == 0
        kept[_SURROGATES] = False
        self._all_kept = f"[{_ranges(kept)}]*"

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns normalized texts, shape (B,), string.

        Args:
            texts: UTF-8 strings, shape (B,), string.
        """
        others = tf.where(~tf.strings.regex_full_match(texts, self._all_kept))

        def replaced() -> tf.Tensor:
            normalized = self._normalized(tf.gather_nd(texts, others))
            return tf.tensor_scatter_nd_update(texts, others, normalized)

        return tf.cond(tf.size(others) > 0, replaced, lambda: texts)

    def _normalized(self, texts: tf.Tensor) -> tf.Tensor:
        decoded = tf.strings.unicode_decode(texts, "UTF-8")
        codes = decoded.flat_values
        entries, dropped = self._replacements(codes, decoded.value_rowids())
        lengths = tf.where(
            dropped, tf.zeros_like(codes, tf.int64), tf.gather(self._lengths, entries)
        )
        ends = tf.cumsum(lengths)
        source = tf.repeat(tf.range(tf.size(codes)), lengths)
        offset = tf.range(tf.size(source, tf.int64)) - tf.gather(ends - lengths, source)
        entry = tf.gather(entries, source)
        replaced = tf.gather(self._codes, tf.gather(self._starts, entry) + offset)
        result = tf.where(entry == 0, tf.gather(codes, source), replaced)
        splits = tf.gather(tf.concat([[0], ends], 0), decoded.row_splits)
        return tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(result, splits, validate=False), "UTF-8"
        )

    def _replacements(self, codes: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the number of each character's replacement, and whether it vanishes."""
        singles = self._singles(codes)
        bytes_of = 1 + sum(tf.cast(codes >= n, tf.int32) for n in (0x80, 0x800, 0x10000))
        begins = ~self._joined(codes, rows)
        clusters = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        sizes = tf.math.segment_sum(tf.ones_like(codes), clusters)
        widths = tf.math.segment_sum(bytes_of, clusters)
        short = tf.gather((sizes > 1) & (widths <= _SHORT), clusters)
        second, third = (_following(codes, by, tf.gather(sizes, clusters)) for by in (1, 2))
        pairs, triples = (self._sequence(codes, second, x) for x in (tf.zeros_like(third), third))
        whole = tf.where(singles > 0, singles, tf.where(pairs > 0, pairs, triples))
        # Valid at the first character of each grapheme; the others ask there.
        firsts = tf.boolean_mask(tf.range(tf.size(codes)), begins)
        found = short & (tf.gather(whole, tf.gather(firsts, clusters)) > 0)
        return tf.where(found & begins, whole, singles), found & ~begins

    def _joined(self, codes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns whether each character belongs to the grapheme of the one before it."""
        kinds = self._kinds(codes)
        before, previous = tf.roll(kinds, 1, 0), tf.roll(codes, 1, 0)
        same_row = tf.concat([tf.zeros_like(rows[:1], tf.bool), rows[1:] == rows[:-1]], 0)
        follows = (kinds == JOINED) & (before != CONTROL)
        prepended = (before == PREPENDED) & (kinds != CONTROL)
        line_end = (previous == _CARRIAGE_RETURN) & (codes == _LINE_FEED)
        return same_row & (follows | prepended | line_end)

    def _sequence(self, first: tf.Tensor, second: tf.Tensor, third: tf.Tensor) -> tf.Tensor:
        """Returns the replacements' numbers of sequences, 0 where there is none."""
        first, second, third = (tf.cast(x, tf.int64) for x in (first, second, third))
        keys = (first * _SHIFT + second) * _SHIFT + third
        places = tf.searchsorted(self._sequences, keys)
        hit = tf.gather(self._sequences, places) == keys
        return tf.where(hit, tf.gather(self._sequence_entries, places), 0)


def _following(codes: tf.Tensor, by: int, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the code `by` places on; 0 where a grapheme that begins here is shorter."""
    return tf.where(sizes > by, tf.roll(codes, -by, 0), 0)


def _packed(sequence: str) -> int:
    padded = [*map(ord, sequence), 0, 0][:3]
    return (padded[0] * _SHIFT + padded[1]) * _SHIFT + padded[2]


def _ranges(kept: np.ndarray) -> str:
    """Returns the true places of a mask as what stands in the brackets of a regular expression."""
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2)
    return "".join(f"\\x{{{first:X}}}-\\x{{{end - 1:X}}}" for first, end in edges.tolist())


def read_charsmap(content: bytes, *, max_bytes: int) -> dict[str, str]:
    """Returns what each character or short sequence of characters becomes.

    Args:
        content: `normalizer_spec.precompiled_charsmap`: the size of a double-array trie, the
            trie, and the replacements, each ended by a NUL.
        max_bytes: Longer sequences are left out.

    Raises:
        ConfigError: the content is not such a map.

    Source: layout of Darts-clone's double array, which SentencePiece stores.
    """
    if not content:
        return {}
    try:
        (size,) = struct.unpack_from("<I", content)
        units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
        replacements = content[4 + size :]
        return {
            key.decode(): replacements[place : replacements.index(b"\0", place)].decode()
            for key, place in _leaves(units, max_bytes)
        }
    except (struct.error, ValueError, IndexError) as error:
        raise ConfigError(
            "`precompiled_charsmap` must be a SentencePiece character map of UTF-8 strings."
            f" Received: {len(content)} bytes that are none ({error})"
        ) from error


def _leaves(units: np.ndarray, max_bytes: int) -> list[tuple[bytes, int]]:
    """Returns keys and values of a double array, all nodes of a depth at a time."""
    leaves = []
    keys, bases = [b""], _offsets(units[:1])
    labels = np.arange(1, 256)
    for _ in range(max_bytes):
        children = bases[:, None] ^ labels
        inside = children < len(units)
        found = inside & ((units[np.where(inside, children, 0)] & 0x800000FF) == labels)
        parents, columns = np.nonzero(found)
        places = children[parents, columns]
        keys = [
            keys[parent] + bytes([labels[column]])
            for parent, column in zip(parents, columns, strict=True)
        ]
        bases = places ^ _offsets(units[places])
        for number in np.flatnonzero((units[places] >> 8) & 1):
            leaves.append((keys[number], int(units[bases[number]] & 0x7FFFFFFF)))
    return leaves


def _offsets(units: np.ndarray) -> np.ndarray:
    return (units >> 10) << ((units & (1 << 9)) >> 6)
