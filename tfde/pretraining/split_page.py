"""A page cut into passages and sentences, as the pre-training tasks draw from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfde.data.pages import Page
from tfde.data.sentences import split_sentences

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
        passages += [Passage(text, split_sentences(text, language)) for text in section.passages]
        if section.heading.rstrip().endswith(_QUESTION_MARKS):
            questions.append(Question(section.heading.strip(), start, len(passages)))
        num_first = num_first or len(passages)
    return SplitPage(page.page_id, page.title, passages, num_first, questions)
