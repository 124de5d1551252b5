"""A SentencePiece character map as graph ops, applied as Hugging Face's tokenizers apply it."""

from __future__ import annotations

import struct

import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.code_points import CodePointTable

_SHORT = 5  # bytes of the graphemes that are looked up as a whole
_SHIFT = 1 << 21  # more than any code point
# Below, no character joins the one before it.
_FIRST_JOINED = 0x300
_CARRIAGE_RETURN, _LINE_FEED = 0x0D, 0x0A
_SURROGATES = slice(0xD800, 0xE000)
# Which characters belong to the grapheme before or after them (Unicode 16, UAX 29), as the
# `tokenizers` library 0.23 cuts; Python's unicodedata knows no graphemes.
# Extend, SpacingMark and ZWJ: never begin a grapheme, save after a control.
_JOINED = """
300-36F 483-489 591-5BD 5BF 5C1-5C2 5C4-5C5 5C7 610-61A 64B-65F 670 6D6-6DC 6DF-6E4
6E7-6E8 6EA-6ED 711 730-74A 7A6-7B0 7EB-7F3 7FD 816-819 81B-823 825-827 829-82D 859-85B
897-89F 8CA-8E1 8E3-903 93A-93C 93E-94F 951-957 962-963 981-983 9BC 9BE-9C4 9C7-9C8
9CB-9CD 9D7 9E2-9E3 9FE A01-A03 A3C A3E-A42 A47-A48 A4B-A4D A51 A70-A71 A75 A81-A83 ABC
ABE-AC5 AC7-AC9 ACB-ACD AE2-AE3 AFA-AFF B01-B03 B3C B3E-B44 B47-B48 B4B-B4D B55-B57
B62-B63 B82 BBE-BC2 BC6-BC8 BCA-BCD BD7 C00-C04 C3C C3E-C44 C46-C48 C4A-C4D C55-C56
C62-C63 C81-C83 CBC CBE-CC4 CC6-CC8 CCA-CCD CD5-CD6 CE2-CE3 CF3 D00-D03 D3B-D3C D3E-D44
D46-D48 D4A-D4D D57 D62-D63 D81-D83 DCA DCF-DD4 DD6 DD8-DDF DF2-DF3 E31 E33-E3A E47-E4E
EB1 EB3-EBC EC8-ECE F18-F19 F35 F37 F39 F3E-F3F F71-F84 F86-F87 F8D-F97 F99-FBC FC6
102D-1037 1039-103E 1056-1059 105E-1060 1071-1074 1082 1084-1086 108D 109D 135D-135F
1712-1715 1732-1734 1752-1753 1772-1773 17B4-17D3 17DD 180B-180D 180F 1885-1886 18A9
1920-192B 1930-193B 1A17-1A1B 1A55-1A5E 1A60 1A62 1A65-1A7C 1A7F 1AB0-1ADD 1AE0-1AEB
1B00-1B04 1B34-1B44 1B6B-1B73 1B80-1B82 1BA1-1BAD 1BE6-1BF3 1C24-1C37 1CD0-1CD2 1CD4-1CE8
1CED 1CF4 1CF7-1CF9 1DC0-1DFF 200C-200D 20D0-20F0 2CEF-2CF1 2D7F 2DE0-2DFF 302A-302F
3099-309A A66F-A672 A674-A67D A69E-A69F A6F0-A6F1 A802 A806 A80B A823-A827 A82C A880-A881
A8B4-A8C5 A8E0-A8F1 A8FF A926-A92D A947-A953 A980-A983 A9B3-A9C0 A9E5 AA29-AA36 AA43
AA4C-AA4D AA7C AAB0 AAB2-AAB4 AAB7-AAB8 AABE-AABF AAC1 AAEB-AAEF AAF5-AAF6 ABE3-ABEA
ABEC-ABED FB1E FE00-FE0F FE20-FE2F FF9E-FF9F 101FD 102E0 10376-1037A 10A01-10A03
10A05-10A06 10A0C-10A0F 10A38-10A3A 10A3F 10AE5-10AE6 10D24-10D27 10D69-10D6D 10EAB-10EAC
10EFA-10EFF 10F46-10F50 10F82-10F85 11000-11002 11038-11046 11070 11073-11074 1107F-11082
110B0-110BA 110C2 11100-11102 11127-11134 11145-11146 11173 11180-11182 111B3-111C0
111C9-111CC 111CE-111CF 1122C-11237 1123E 11241 112DF-112EA 11300-11303 1133B-1133C
1133E-11344 11347-11348 1134B-1134D 11357 11362-11363 11366-1136C 11370-11374 113B8-113C0
113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2 11435-11446 1145E 114B0-114C3
115AF-115B5 115B8-115C0 115DC-115DD 11630-11640 116AB-116B7 1171D-1171F 11722-1172B
1182C-1183A 11930-11935 11937-11938 1193B-1193E 11940 11942-11943 119D1-119D7 119DA-119E0
119E4 11A01-11A0A 11A33-11A39 11A3B-11A3E 11A47 11A51-11A5B 11A8A-11A99 11B60-11B67
11C2F-11C36 11C38-11C3F 11C92-11CA7 11CA9-11CB6 11D31-11D36 11D3A 11D3C-11D3D 11D3F-11D45
11D47 11D8A-11D8E 11D90-11D91 11D93-11D97 11EF3-11EF6 11F00-11F01 11F03 11F34-11F3A
11F3E-11F42 11F5A 13440 13447-13455 1611E-1612F 16AF0-16AF4 16B30-16B36 16F4F 16F51-16F87
16F8F-16F92 16FE4 16FF0-16FF1 1BC9D-1BC9E 1CF00-1CF2D 1CF30-1CF46 1D165-1D169 1D16D-1D172
1D17B-1D182 1D185-1D18B 1D1AA-1D1AD 1D242-1D244 1DA00-1DA36 1DA3B-1DA6C 1DA75 1DA84
1DA9B-1DA9F 1DAA1-1DAAF 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E08F
1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5
1E8D0-1E8D6 1E944-1E94A 1F3FB-1F3FF E0020-E007F E0100-E01EF
"""
# Prepend: the grapheme goes on after them.
_PREPENDED = """
600-605 6DD 70F 890-891 8E2 D4E 110BD 110CD 111C2-111C3 113D1 1193F 11941 11A84-11A89
11D46 11F02
"""
# Control, CR and LF: stand alone.
_CONTROLS = """
0-1F 7F-9F AD 61C 180E 200B 200E-200F 2028-202E 2060-206F FEFF FFF0-FFFB 13430-1343F
1BCA0-1BCA3 1D173-1D17A E0000-E001F E0080-E00FF E01F0-E0FFF
"""
OTHER, JOINED, PREPENDED, CONTROL = range(4)


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


def grapheme_kinds() -> np.ndarray:
    """Returns the kind of each character by its code, shape (0x110000,), int32.

    Hangul, flags, emoji sequences and Indic conjuncts are left out: their parts take three bytes
    or more each, and it is only graphemes of up to five bytes that `CharsmapNormalizer` asks for.
    """
    kinds = np.full(0x110000, OTHER, "int32")
    for kind, ranges in ((JOINED, _JOINED), (PREPENDED, _PREPENDED), (CONTROL, _CONTROLS)):
        for item in ranges.split():
            first, _, last = item.partition("-")
            kinds[int(first, 16) : int(last or first, 16) + 1] = kind
    return kinds
