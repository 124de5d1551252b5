"""SQuAD 1.1's JSON as a retrieval data set, at the level of paragraphs or of sentences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfde.data.json_lines import GZIP_ERRORS, gzip_error, json_fault, open_binary
from tfde.data.sentences import split_sentences
from tfde.errors import DataError, shorten
from tfde.types import Document, Query

Level = Literal["paragraph", "sentence"]


class SquadQuestion(NamedTuple):
    """A question and where each of its annotators' answers starts in the context."""

    query: Query
    answer_starts: tuple[int, ...]


class SquadParagraph(NamedTuple):
    """A paragraph of an article with its questions; `document.text` is the whole context."""

    document: Document
    questions: tuple[SquadQuestion, ...]


def read_squad(path: str | Path) -> Iterator[SquadParagraph]:
    """Yields the paragraphs of a SQuAD 1.1 file (plain or `.gz`) in their order.

    A paragraph's id is its article's title and its number in the article, from 0; in the title of
    a document, the underscores of the article's title are spaces. White space inside a question is
    run together (407 of the dev file's 10,570 have some too much); contexts stay as they are, for
    offsets point into them.

    Raises:
        DataError: not JSON; a field is missing, empty or of a wrong type; a question has no
            answer or one that starts outside the context; the id of a question or the title of
            an article comes twice. The message names the place inside the JSON.
    """
    reader = _Reader(Path(path))
    data = reader.field(reader.load(), "data", list, "")
    titles: set[str] = set()
    query_ids: set[str] = set()
    for a, article in enumerate(data):
        place = f"data[{a}]"
        title = reader.text(article, "title", place)
        reader.unique(title, titles, f"{place}.title")
        for p, paragraph in enumerate(reader.field(article, "paragraphs", list, place)):
            inside = f"{place}.paragraphs[{p}]"
            context = reader.text(paragraph, "context", inside)
            questions = []
            for q, record in enumerate(reader.field(paragraph, "qas", list, inside)):
                question = reader.question(record, context, f"{inside}.qas[{q}]")
                reader.unique(question.query.query_id, query_ids, f"{inside}.qas[{q}].id")
                questions.append(question)
            name = "_".join(title.split())
            document = Document(f"{name}-{p}", title.replace("_", " "), context)
            yield SquadParagraph(document, tuple(questions))


def squad_records(
    paragraphs: Iterable[SquadParagraph], *, level: Level = "paragraph"
) -> Iterator[tuple[list[Document], list[tuple[Query, str]]]]:
    """Yields for each paragraph its documents, and its queries with the id of the relevant one.

    At sentence level the sentences of paragraph `ID` are `ID.0`, `ID.1` ..., and the relevant one
    holds the start of most of the annotators' answers; of equally many, that of the first answer.
    """
    for paragraph in paragraphs:
        whole = paragraph.document
        if level == "paragraph":
            spans = [(0, len(whole.text))]
            documents = [whole]
        else:
            spans = split_sentences(whole.text)
            documents = [
                Document(f"{whole.doc_id}.{number}", whole.title, whole.text[start:stop])
                for number, (start, stop) in enumerate(spans)
            ]
        judged = []
        for question in paragraph.questions:
            # Counter keeps the order of first sight and most_common is stable.
            votes = Counter(_span_of(start, spans) for start in question.answer_starts)
            judged.append((question.query, documents[votes.most_common(1)[0][0]].doc_id))
        yield documents, judged


def _span_of(position: int, spans: list[tuple[int, int]]) -> int:
    # White space between two sentences belongs to the one after it.
    return next((i for i, (_, stop) in enumerate(spans) if position < stop), len(spans) - 1)


class _Reader:
    """Takes fields out of the JSON and names the place of what is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Any:
        try:
            with open_binary(self.path) as file:
                return json.loads(file.read().decode())
        except UnicodeDecodeError as error:
            raise DataError(self.path, None, f"must be UTF-8 (byte {error.start}).") from error
        except GZIP_ERRORS as error:
            raise gzip_error(self.path, None, error) from error
        except (ValueError, RecursionError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else None
            raise DataError(self.path, line, f"must be JSON ({json_fault(error)}).") from error

    def fail(self, place: str, rule: str, value: object = None) -> DataError:
        return DataError(self.path, None, f"{place or 'the file'} {rule}", value)

    def field(self, record: Any, name: str, kind: type, place: str) -> Any:
        if not isinstance(record, dict):
            raise self.fail(place, "must be an object.", record)
        inside = f"{place}.{name}" if place else name
        if name not in record:
            raise self.fail(inside, "is missing (SQuAD 1.1 has it).", shorten(sorted(record)))
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
        return value

    def unique(self, value: str, seen: set[str], place: str) -> None:
        if value in seen:
            raise self.fail(place, "must be unique.", value)
        seen.add(value)

    def question(self, record: Any, context: str, place: str) -> SquadQuestion:
        query_id = self.text(record, "id", place)
        if query_id.split() != [query_id]:
            raise self.fail(f"{place}.id", "must not hold white space.", query_id)
        query = Query(query_id, " ".join(self.text(record, "question", place).split()))
        answers = self.field(record, "answers", list, place)
        if not answers:
            raise self.fail(f"{place}.answers", "must hold at least one answer.", answers)
        starts = []
        for number, answer in enumerate(answers):
            inside = f"{place}.answers[{number}]"
            start = self.field(answer, "answer_start", int, inside)
            if not 0 <= start < len(context):
                rule = f"must be in [0, {len(context)}), inside the context."
                raise self.fail(f"{inside}.answer_start", rule, start)
            starts.append(start)
        return SquadQuestion(query, tuple(starts))
