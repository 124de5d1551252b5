"""NQ-open: questions with accepted answers, for retrieval from a corpus given beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.dpr import read_passages
from tfde.data.formats.records import Answers, Record, Source
from tfde.data.intake import Intake
from tfde.data.json_lines import read_json_lines, string_field, strings_field, write_json_lines
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


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `SPLIT.jsonl`, the questions that have answers; ids have no field.

    A dataset without judgements has no splits; all its questions become `questions.jsonl`.

    Raises:
        ConfigError: there are no answers.
    """
    counts = {}
    answers = dataset.answers()
    for split in splits or (None,):
        name = f"{split or 'questions'}.jsonl{suffix}"
        counts[name] = write_json_lines(
            directory / name,
            (
                {"question": query.text, "answer": list(answers[query.query_id])}
                for query in dataset.queries(split)
                if query.query_id in answers
            ),
        )
    return counts
