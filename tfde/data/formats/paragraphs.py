"""Reading-comprehension data: texts, the questions asked about them, and where answers stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tfde.data.formats.records import Answers, Judgement, Record
from tfde.data.sentences import split_sentences
from tfde.errors import require
from tfde.types import CONTEXT, Document, Query

Level = Literal["paragraph", "sentence"]


class Question(NamedTuple):
    """A question, its accepted answers, and where each of them starts in the paragraph."""

    query: Query
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]


class Paragraph(NamedTuple):
    """A text with its questions; offsets point into `document.text`."""

    document: Document
    questions: tuple[Question, ...]


def paragraph_records(
    paragraph: Paragraph, split: str, *, level: Level = "paragraph", context: bool = False
) -> Iterator[Record]:
    """Yields the paragraph's documents, then each query with its judgement and answers.

    At sentence level the sentences of paragraph `ID` are `ID.0`, `ID.1` ..., and the relevant one
    holds the start of most of the annotators' answers; of equally many, that of the first answer.
    With `context` each sentence has the paragraph as its context.

    Raises:
        ConfigError: `context` of whole paragraphs.
    """
    rule = "left out where documents are paragraphs, which have none (level sentence)"
    require(level == "sentence" or not context, "context", rule, context)
    whole = paragraph.document
    if level == "paragraph":
        spans: tuple[tuple[int, int], ...] = ((0, len(whole.text)),)
        documents = [whole]
    else:
        spans = split_sentences(whole.text)
        metadata = {CONTEXT: whole.text} if context else None
        documents = [
            Document(f"{whole.doc_id}.{number}", whole.title, whole.text[start:stop], metadata)
            for number, (start, stop) in enumerate(spans)
        ]
    yield from documents
    for question in paragraph.questions:
        # Counter keeps the order of first sight and most_common is stable.
        votes = Counter(_span_of(start, spans) for start in question.answer_starts)
        relevant = documents[votes.most_common(1)[0][0]]
        query_id = question.query.query_id
        yield question.query
        yield Judgement(split, query_id, relevant.doc_id, 1)
        yield Answers(query_id, tuple(dict.fromkeys(question.answers)))


def _span_of(position: int, spans: tuple[tuple[int, int], ...]) -> int:
    # White space between two sentences belongs to the one after it.
    return next((i for i, (_, stop) in enumerate(spans) if position < stop), len(spans) - 1)
