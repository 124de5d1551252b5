"""SQuAD's JSON: articles of paragraphs with questions and the places of their answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfde.data.formats.paragraphs import Level, Paragraph, Question, paragraph_records
from tfde.data.formats.records import Record, Source
from tfde.errors import DataError, shorten, utf8_fault
from tfde.storage.compressed import read_whole
from tfde.storage.intake import Intake
from tfde.storage.json_file import json_fault
from tfde.types import Document, Query


def read(
    sources: Sequence[Source],
    intake: Intake,
    *,
    level: Level = "paragraph",
    context: bool = False,
) -> Iterator[Record]:
    """Yields the records of SQuAD files; documents are paragraphs or their sentences."""
    numbers: Counter[str] = Counter()
    for source in sources:
        for paragraph in read_squad(source.path, intake, numbers=numbers):
            yield from paragraph_records(paragraph, source.split, level=level, context=context)


def read_squad(
    path: str | Path, intake: Intake | None = None, *, numbers: Counter[str] | None = None
) -> Iterator[Paragraph]:
    """Yields the paragraphs of a SQuAD file, plain or packed, in their order.

    A paragraph's id is its article's title (`untitled` where it has none) and its number among
    those of this title, from 0; in the title of a document, the underscores of the article's
    title are spaces. White space inside a question is run together (407 of the dev file's 10,570
    have some too much); contexts stay as they are, for offsets point into them. Questions without
    an answer, which SQuAD 2.0 has, are left out and counted. The whole file is read into memory.

    Args:
        path: The file.
        intake: The place, and what becomes of bad records.
        numbers: How many paragraphs of each title files before this one had.

    Raises:
        DataError: not JSON; a field is missing, empty or of a wrong type; an answer stands
            outside the context; the id of a question comes twice. The message names the place
            inside the JSON.
    """
    intake = intake or Intake()
    numbers = Counter() if numbers is None else numbers
    intake.at(path)
    reader = _Reader(Path(path), intake)
    articles = intake.take(lambda: reader.field(reader.load(), "data", list, ""))
    for a, article in enumerate(articles or []):
        title = intake.take(reader.title, article, f"data[{a}]")
        if title is None:
            continue
        place = f"data[{a}].paragraphs"
        paragraphs = intake.take(reader.field, article, "paragraphs", list, f"data[{a}]")
        name = "_".join(title.split()) or "untitled"
        for p, record in enumerate(paragraphs or []):
            doc_id = f"{name}-{numbers[name]}"
            numbers[name] += 1
            paragraph = intake.take(
                reader.paragraph, record, doc_id, title.replace("_", " ").strip(), f"{place}[{p}]"
            )
            if paragraph is not None:
                yield paragraph


class _Reader:
    """Takes fields out of the JSON and names the place of what is wrong."""

    def __init__(self, path: Path, intake: Intake) -> None:
        self.path, self.intake = path, intake
        self.query_ids: set[str] = set()

    def load(self) -> Any:
        try:
            return json.loads(read_whole(self.path).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DataError(self.path, None, f"must be UTF-8 (byte {error.start}).") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            line = error.lineno if isinstance(error, json.JSONDecodeError) else None
            raise DataError(self.path, line, f"must be JSON ({json_fault(error)}).") from error

    def fail(self, place: str, rule: str, value: object = None) -> DataError:
        return DataError(self.path, None, f"{place or 'the file'} {rule}", value)

    def field(self, record: Any, name: str, kind: type, place: str) -> Any:
        if not isinstance(record, dict):
            raise self.fail(place, "must be an object.", record)
        inside = f"{place}.{name}" if place else name
        if name not in record:
            raise self.fail(inside, "is missing (SQuAD has it).", shorten(sorted(record)))
        value = record[name]
        # bool is an int, but no offset.
        if not isinstance(value, kind) or isinstance(value, bool):
            kinds = {list: "a list", str: "a string", int: "an integer"}
            raise self.fail(inside, f"must be {kinds[kind]}.", value)
        return value

    def text(self, record: Any, name: str, place: str) -> str:
        value: str = self.field(record, name, str, place)
        if not value.strip():
            raise self.fail(f"{place}.{name}", "must not be empty.", value)
        if (fault := utf8_fault(value)) is not None:
            raise self.fail(f"{place}.{name}", "must be text that UTF-8 can write.", fault)
        return value

    def unique(self, value: str, seen: set[str], place: str) -> None:
        if value in seen:
            raise self.fail(place, "must be unique.", value)
        seen.add(value)

    def title(self, article: Any, place: str) -> str:
        if isinstance(article, dict) and article.get("title") is None:
            return ""
        title: str = self.field(article, "title", str, place)
        return title

    def paragraph(self, record: Any, doc_id: str, title: str, place: str) -> Paragraph:
        context = self.text(record, "context", place)
        questions = []
        for q, item in enumerate(self.field(record, "qas", list, place)):
            question = self.intake.take(self.question, item, context, f"{place}.qas[{q}]")
            if question is not None and not question.answers:
                self.intake.leave_out("questions without an answer")
            elif question is not None:
                questions.append(question)
        return Paragraph(Document(doc_id, title, context), tuple(questions))

    def question(self, record: Any, context: str, place: str) -> Question:
        if isinstance(record, dict) and type(record.get("id")) is int:
            record = record | {"id": str(record["id"])}
        query_id = self.text(record, "id", place)
        if query_id.split() != [query_id]:
            raise self.fail(f"{place}.id", "must not hold white space.", query_id)
        query = Query(query_id, " ".join(self.text(record, "question", place).split()))
        answers = self.field(record, "answers", list, place)
        if record.get("is_impossible") is True:
            answers = []  # some files keep plausible ones here
        texts, starts = [], []
        for number, answer in enumerate(answers):
            inside = f"{place}.answers[{number}]"
            text = self.text(answer, "text", inside)
            start = self.field(answer, "answer_start", int, inside)
            if not 0 <= start <= len(context) - len(text):
                rule = f"must be in [0, {len(context) - len(text)}], the answer inside the context."
                raise self.fail(f"{inside}.answer_start", rule, start)
            texts.append(text)
            starts.append(start)
        self.unique(query_id, self.query_ids, f"{place}.id")
        return Question(query, tuple(texts), tuple(starts))
