"""The MRQA shared task's JSON Lines: contexts, questions, and where detected answers stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfde.data.formats.paragraphs import Level, Paragraph, Question, paragraph_records
from tfde.data.formats.records import Record, Source
from tfde.data.ids import KnownIds, id_of_text
from tfde.errors import DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import (
    id_field,
    list_field,
    read_json_lines,
    string_field,
    strings_field,
)
from tfde.types import Document, Query

MARK = re.compile(r"\s*\[(DOC|PAR|TLE|SEP)\]\s*")


def read(
    sources: Sequence[Source],
    intake: Intake,
    *,
    level: Level = "paragraph",
    context: bool = False,
) -> Iterator[Record]:
    """Yields the records of MRQA files; documents are contexts or their sentences."""
    known = KnownIds()
    for source in sources:
        for paragraph in map(without_marks, read_mrqa(source.path, intake)):
            new = known.add(paragraph.document.doc_id)
            for record in paragraph_records(paragraph, source.split, level=level, context=context):
                # Some sets ask about one context in several lines.
                if new or not isinstance(record, Document):
                    yield record


def read_mrqa(path: str | Path, intake: Intake) -> Iterator[Paragraph]:
    """Yields the contexts of an MRQA file with their questions; the header line is optional.

    A context gets its id from its hash, for the file's own are empty in most sets. Offsets in the
    file are inclusive characters of the context; its marks stay in it, for they count
    (`without_marks` takes them out).

    Raises:
        DataError: not JSON Lines; a field is missing, empty or of a wrong type; a question
            without a detected answer; a span outside the context.

    Source: README.md of github.com/mrqa/MRQA-Shared-Task-2019, "Dataset Format".
    """
    for line, record in read_json_lines(path, intake):
        if "header" in record:
            continue
        context = intake.take(string_field, path, line, record, "context")
        items = intake.take(list_field, path, line, record, "qas")
        if context is None or items is None:
            continue
        questions = []
        for item in items:
            question = intake.take(_question, path, line, item, context)
            if question is not None:
                questions.append(question)
        yield Paragraph(Document(id_of_text(context), "", context), tuple(questions))


def without_marks(paragraph: Paragraph) -> Paragraph:
    """Returns a context without MRQA's marks, its questions' offsets moved with the text.

    `[DOC]`, `[PAR]`, `[TLE]` and `[SEP]` begin a document, a paragraph, a title and what comes
    after a title: they are structure, so each becomes a line feed. The title of a context that
    has just one is the document's; of several, each stays a line before its text.

    Source: README.md of github.com/mrqa/MRQA-Shared-Task-2019, "Dataset Format".
    """
    context = paragraph.document.text
    marks = list(MARK.finditer(context))
    title, title_number = "", None
    if sum(mark[1] == "TLE" for mark in marks) == 1:
        title_number = next(n for n, mark in enumerate(marks) if mark[1] == "TLE")
    kept: list[tuple[int, int, int]] = []  # first and last character in the context, new first
    text = ""
    bounds = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(context)]
    for number, (start, end) in enumerate(zip(bounds, ends, strict=True)):
        piece = context[start:end]
        if title_number is not None and number == title_number + 1:
            title = " ".join(piece.split())
        elif piece.strip():
            text += "\n" * bool(text)
            kept.append((start, end, len(text)))
            text += piece
    if not text:
        return paragraph

    def moved(position: int) -> int:
        piece = next((piece for piece in kept if position < piece[1]), kept[-1])
        return piece[2] + min(max(position - piece[0], 0), piece[1] - piece[0] - 1)

    questions = tuple(
        question._replace(answer_starts=tuple(map(moved, question.answer_starts)))
        for question in paragraph.questions
    )
    return Paragraph(paragraph.document._replace(title=title, text=text), questions)


def _question(path: str | Path, line: int, item: Any, context: str) -> Question:
    if not isinstance(item, dict):
        raise DataError(path, line, "field 'qas' must hold objects.", item)
    query = Query(
        id_field(path, line, item, "qid"),
        " ".join(string_field(path, line, item, "question").split()),
    )
    starts = []
    for answer in list_field(path, line, item, "detected_answers"):
        if not isinstance(answer, dict):
            raise DataError(path, line, "field 'detected_answers' must hold objects.", answer)
        for span in list_field(path, line, answer, "char_spans"):
            starts.append(_start(path, line, span, context))
    if not starts:
        rule = "field 'detected_answers' must hold at least one span."
        raise DataError(path, line, rule, query.query_id)
    return Question(query, strings_field(path, line, item, "answers"), tuple(starts))


def _start(path: str | Path, line: int, span: Any, context: str) -> int:
    whole = isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)
    if not whole or not 0 <= span[0] <= span[1] < len(context):
        rule = f"a span of 'char_spans' must be [first, last] in [0, {len(context)})."
        raise DataError(path, line, rule, span)
    start: int = span[0]
    return start
