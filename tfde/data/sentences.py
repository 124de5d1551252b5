"""Sentences of a text, by sentencex."""

from __future__ import annotations

import re

import sentencex

# sentencex 1.0.32 panics where one of these stands between a capital letter and a full stop.
_OTHER_BLANKS = re.compile(r"[^\S\x00-\x7f]")


def split_sentences(text: str, language: str = "en") -> tuple[tuple[int, int], ...]:
    """Returns start and end of each sentence, white space around them left out.

    Every character that is not white space lies in exactly one sentence.

    Args:
        text: Any text.
        language: ISO 639 code; languages unknown to sentencex are cut as their relatives are.
    """
    text = _OTHER_BLANKS.sub(" ", text)
    spans: list[tuple[int, int]] = []
    place = 0
    for piece in sentencex.segment(language, text):
        sentence = piece.strip()
        if sentence:
            start = text.index(sentence, place)
            stop = start + len(sentence)
            # "version 3.X", "Foo.bar()": after ASCII comes white space, or a citation: [3], :12.
            if spans and start == place and text[place - 1].isascii() and text[place] not in "[:":
                start = spans.pop()[0]
            place = stop
            spans.append((start, place))
    return tuple(spans)
