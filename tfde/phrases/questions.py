"""The questions of a dataset by the passage that they are asked about, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.phrases.passages import Places
from tfde.types import Document, Query


class AskedDocument(NamedTuple):
    """A document with the questions asked about it; `answers[i]` are those of `queries[i]`."""

    document: Document
    queries: tuple[Query, ...]
    answers: tuple[tuple[str, ...], ...]


@dataclass
class AnswerCounts:
    """What became of the judged questions of a split; the rest of the numbers sum up to the first.

    Attributes:
        questions: All.
        seen: An answer stands in the passage where the encoder sees it.
        not_in_text: No answer stands in the passage's text.
        cut: Answers stand only where the passage is cut off, or are longer than a phrase.
        without_answers: No answer is known.
        without_passage: No relevant document is in the corpus.
    """

    questions: int = 0
    seen: int = 0
    not_in_text: int = 0
    cut: int = 0
    without_answers: int = 0
    without_passage: int = 0

    def add(self, places: Places) -> None:
        """Counts a question whose passage is there."""
        self.seen += bool(places.spans)
        self.cut += places.found and not places.spans
        self.not_in_text += not places.found

    def __str__(self) -> str:
        return (
            f"{self.questions:,} questions: of {self.seen:,} an answer is seen,"
            f" of {self.cut:,} it is cut off or too long, of {self.not_in_text:,} it is not in the"
            f" text; {self.without_answers:,} without answers, {self.without_passage:,} without"
            " a passage"
        )


def asked_documents(directory: str | Path, split: str) -> tuple[list[AskedDocument], AnswerCounts]:
    """Returns the documents that questions of a split are about, and counts of what is left out.

    A question belongs to its first relevant document. `seen`, `not_in_text` and `cut` are left 0.

    Args:
        directory: Dataset directory with `answers.jsonl`, as `tfde convert --format squad` makes.
        split: Whose judged questions.

    Raises:
        ConfigError: there is no such split, or no file of answers; no question has both.
        DataError: a file breaks a rule of its format.
    """
    dataset = DatasetDirectory(directory)
    qrels, answers = dataset.qrels(split), dataset.answers()
    queries = {query.query_id: query for query in dataset.queries(split)}
    counts = AnswerCounts(questions=len(qrels))
    asked: dict[str, list[str]] = {}
    for query_id, judged in qrels.items():
        relevant = [doc_id for doc_id, relevance in judged.items() if relevance > 0]
        if not answers.get(query_id):
            counts.without_answers += 1
        elif relevant:
            asked.setdefault(relevant[0], []).append(query_id)
        else:
            counts.without_passage += 1
    documents = dataset.document_store(asked)
    found = []
    for doc_id, query_ids in asked.items():
        if doc_id not in documents:
            counts.without_passage += len(query_ids)
            continue
        texts = tuple(answers[query_id] for query_id in query_ids)
        found.append(AskedDocument(documents[doc_id], tuple(queries[q] for q in query_ids), texts))
    if not found:
        raise ConfigError(f"{directory}: split {split} must have questions with answers. {counts}")
    return found, counts
