"""What BERT's normalizer makes of each single code point, as a table.

Hugging Face's `BertNormalizer` cleans (drops control and format characters, makes every white
space a blank), puts blanks around Chinese characters, decomposes (NFD) and drops non-spacing
marks, and lowercases. All of it but the ordering of marks is decided by one code point at a
time, so the whole normalizer is one table.

The ranges below were made by asking `tokenizers` 0.23.3 about each code point and subtracting
what `unicode_14` says: its categories are those of Unicode 8, its NFD
that of Unicode 12, its lower case that of Unicode 16. A test asks again about every one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import partial

from tfde.text.code_points import category, code_points, combining, decompose

WHITE_SPACE = frozenset(code_points("9-A D 20 A0 1680 2000-200A 2028-2029 202F 205F 3000"))
DROPPED = frozenset(
    code_points(
        "0-8 B-C E-1F 7F-9F AD 600-605 61C 6DD 70F 180E 200B-200F 202A-202E 2060-2064 2066-206F"
        " E000-F8FF FEFF FFF9-FFFB FFFD 110BD 1BCA0-1BCA3 1D173-1D17A E0001 E0020-E007F"
        " F0000-FFFFD 100000-10FFFD"
    )
)
# 2B820-2B91F is left out by a slip of Hugging Face's that its vocabularies have to live with.
CHINESE = frozenset(
    code_points("3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B81F 2B920-2CEAF 2F800-2FA1F")
)
# Non-spacing marks of Unicode 14 that are kept.
KEPT_MARKS = frozenset(
    code_points(
        "07FD 0898-089F 08CA-08E1 09FE 0AFA-0AFF 0B55 0C04 0C3C 0D00 0D3B-0D3C 0D81 0EBA 180F"
        " 1885-1886 1ABF-1ACE 1DF6-1DFB A82C A8C5 A8FF A9BD 10D24-10D27 10EAB-10EAC 10F46-10F50"
        " 10F82-10F85 11070 11073-11074 110C2 111C9 111CF 1123E 1133B 11438-1143F 11442-11444"
        " 11446 1145E 1182F-11837 11839-1183A 1193B-1193C 1193E 11943 119D4-119D7 119DA-119DB"
        " 119E0 11A01-11A0A 11A33-11A38 11A3B-11A3E 11A47 11A51-11A56 11A59-11A5B 11A8A-11A96"
        " 11A98-11A99 11C30-11C36 11C38-11C3D 11C3F 11C92-11CA7 11CAA-11CB0 11CB2-11CB3"
        " 11CB5-11CB6 11D31-11D36 11D3A 11D3C-11D3D 11D3F-11D45 11D47 11D90-11D91 11D95 11D97"
        " 11EF3-11EF4 16F4F 16FE4 1CF00-1CF2D 1CF30-1CF46 1E000-1E006 1E008-1E018 1E01B-1E021"
        " 1E023-1E024 1E026-1E02A 1E130-1E136 1E2AE 1E2EC-1E2EF 1E944-1E94A"
    )
)
DROPPED_MARKS = frozenset({0x1734})
# Marks that stay in the text and that NFD puts in order among their neighbours.
ORDERED_MARKS = frozenset(
    code_points(
        "08D4-08E1 1B44 1BAA 1BF2-1BF3 1DFB 302E-302F A953 A9C0 111C0 11235 1134D 11442 11446"
        " 116B6 11C3F 1D165-1D166 1D16D-1D172 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024"
        " 1E026-1E02A 1E944-1E94A"
    )
)
NOT_DECOMPOSED = frozenset({0x11938})
# Letters whose lower case came with Unicode 15 and 16.
LOWER = {
    **{c: c + 1 for c in (0x1C89, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA)},
    0xA7CB: 0x264,
    0xA7DC: 0x19B,
    **{c: c + 0x20 for c in range(0x10D50, 0x10D66)},
    **{c: c + 0x1B for c in range(0x16EA0, 0x16EB9)},
}

# How tensorflow_text's FastWordpieceTokenizer splits words differs from Hugging Face's
# BertPreTokenizer: these stand alone there and are letters here (newer punctuation, and the
# Chinese characters of the slip above) ...
SPLIT_BY_OP_ONLY = frozenset(
    code_points(
        "061D 09FD 0A76 0C77 0C84 1B4E-1B4F 1B7D-1B7F 2E43-2E4F 2E52-2E5D 10D6E 10EAD"
        " 10F55-10F59 10F86-10F89 113D4-113D5 113D7-113D8 1144B-1144F 1145A-1145B 1145D"
        " 11660-1166C 116B9 1183B 11944-11946 119E2 11A3F-11A46 11A9A-11A9C 11A9E-11AA2"
        " 11B00-11B09 11BE1 11C41-11C45 11C70-11C71 11EF7-11EF8 11F43-11F4F 11FFF 12FF1-12FF2"
        " 16D6D-16D6F 16E97-16E9A 16FE2 1E5FF 1E95E-1E95F 2B820-2B91F"
    )
)
# ... and these the other way round.
LETTER_FOR_OP_ONLY = frozenset({0x166D, 0x111C9})
# Code points above 1FFFF that change are private, Chinese or variation selectors.
_LETTERS = [*code_points("0-D7FF E000-1FFFF E0100-E01EF")]


def stands_alone(code: int) -> bool:
    """Returns whether FastWordpieceTokenizer makes this character of a normalized text a word.

    A blank counts: it ends words too. `SPLIT_BY_OP_ONLY` never stands in a normalized text.
    """
    if code < 0x80:
        return not chr(code).isalnum()
    if code in CHINESE:
        return True
    return category(chr(code))[0] == "P" and code not in LETTER_FOR_OP_ONLY


def combining_classes() -> dict[int, int]:
    """Returns the canonical combining classes, where not 0, by which NFD orders characters.

    A character made of several marks counts as its first one.
    """
    classes = {}
    for character, decomposed in _decomposed(_LETTERS):
        # `unicodedata` first: of what it has no class `combining` has none either.
        if unicodedata.combining(decomposed[0]):
            code, first = ord(character), decompose(character)[0]
            if (_is_mark(first) or code in ORDERED_MARKS) and combining(first):
                classes[code] = combining(first)
    return classes


def normalized_characters(*, lowercase: bool, strip_accents: bool) -> dict[int, str]:
    """Returns the code points that BERT's normalizer changes, with what becomes of them.

    Of `DROPPED` and `CHINESE`, 230,000 code points, only those that something else befalls.

    Args:
        lowercase: Whether letters become lower case.
        strip_accents: Whether texts are decomposed and non-spacing marks dropped.
    """
    changed = {}
    # All others that Unicode has nothing to say about stay as they are, without being asked.
    asked = {*WHITE_SPACE, *DROPPED_MARKS, *LOWER}
    for character, decomposed in _decomposed([*_LETTERS, *CHINESE]):
        if (
            decomposed != character
            or character.lower() != character
            or unicodedata.category(character) == "Mn"
        ):
            asked.add(ord(character))
    for code in asked:
        result = _normalize(chr(code), lowercase=lowercase, strip_accents=strip_accents)
        if result != chr(code):
            changed[code] = result
    return changed


def _decomposed(codes: Iterable[int]) -> Iterable[tuple[str, str]]:
    """Returns characters with their NFD of this Python's Unicode, 14 or later."""
    characters = list(map(chr, codes))
    return zip(characters, map(partial(unicodedata.normalize, "NFD"), characters), strict=True)


def _normalize(character: str, *, lowercase: bool, strip_accents: bool) -> str:
    code = ord(character)
    if code in WHITE_SPACE:
        return " "
    if code in DROPPED:
        return ""
    text = character
    if strip_accents:
        if code not in NOT_DECOMPOSED:
            text = decompose(text)
        text = "".join(c for c in text if not _is_mark(c))
    if lowercase:
        text = "".join(chr(LOWER[ord(c)]) if ord(c) in LOWER else c.lower() for c in text)
    return f" {text} " if code in CHINESE else text


def _is_mark(character: str) -> bool:
    code = ord(character)
    if category(character) == "Mn":
        return code not in KEPT_MARKS
    return code in DROPPED_MARKS
