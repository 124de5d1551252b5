"""NQ-open: questions with accepted answers, for retrieval from a corpus given beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tfde.data.formats.dpr import read_passages
from tfde.data.formats.records import Answers, Record, Source
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines, string_field, strings_field
from tfde.types import Query


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields passages (DPR's TSV), then questions and their answers.

    A question has no id; it gets the name of its file and the number of its line. There are no
    judgements, so the dataset directory has no splits.

    Raises:
        DataError: a field is missing, empty or of a wrong type.

    Source: the files in nq_open of github.com/google-research-datasets/natural-questions.
    """
    for source in sources:
        if source.role == "passages":
            yield from read_passages(source.path, intake)
    for source in sources:
        if source.role == "questions":
            name = "_".join(source.path.name.partition(".jsonl")[0].split())
            for line, record in read_json_lines(source.path, intake):
                yield from intake.take(_records, source, line, record, f"{name}-{line}") or ()


def _records(source: Source, line: int, record: dict[str, Any], query_id: str) -> list[Record]:
    text = string_field(source.path, line, record, "question")
    answers = strings_field(source.path, line, record, "answer")
    return [Query(query_id, text), Answers(query_id, answers)]
