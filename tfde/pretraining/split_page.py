"""A page cut into passages and sentences, as the pre-training tasks draw from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sentencex

from tfde.data.pages import Page

_QUESTION_MARKS = ("?", "？", "؟")


class Passage(NamedTuple):
    """A paragraph and where each of its sentences starts and ends, white space left out."""

    text: str
    sentences: tuple[tuple[int, int], ...]


class Question(NamedTuple):
    """A heading that asks, and the first and last (exclusive) passage that answer it."""

    heading: str
    start: int
    stop: int


class SplitPage(NamedTuple):
    """A page as the tasks see it.

    `passages` are those of all sections in their order, `num_first` is how many of them are the
    first section, `questions` are the sections whose heading is a question.
    """

    page_id: str
    title: str
    passages: Sequence[Passage]
    num_first: int
    questions: Sequence[Question]


def split_page(page: Page, *, language: str = "en") -> SplitPage:
    """Returns the page cut into sentences.

    Args:
        page: The page; every section has a passage.
        language: ISO 639 code; languages unknown to sentencex are cut as their relatives are.
    """
    passages: list[Passage] = []
    questions = []
    num_first = 0
    for section in page.sections:
        start = len(passages)
        passages += [Passage(text, split_text(text, language)) for text in section.passages]
        if section.heading.rstrip().endswith(_QUESTION_MARKS):
            questions.append(Question(section.heading.strip(), start, len(passages)))
        num_first = num_first or len(passages)
    return SplitPage(page.page_id, page.title, passages, num_first, questions)


def split_text(text: str, language: str = "en") -> tuple[tuple[int, int], ...]:
    """Returns start and end of each sentence, white space around them left out."""
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
