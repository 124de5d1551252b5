"""Passages with their questions in batches, with the places of the answers marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.errors import ConfigError
from tfde.phrases.passages import Passage, PassageReader, answer_places, padded
from tfde.phrases.questions import asked_documents


class Question(NamedTuple):
    """A question of a passage, and first and last token of each occurrence of its answers."""

    text: str
    spans: tuple[tuple[int, int], ...]


class PhraseData:
    """Passages with their questions, in batches that the seed and the step's number decide.

    Args:
        directory: Dataset directory with `answers.jsonl`.
        split: Whose judged questions.
        reader: Makes the passages.
        max_phrase_tokens: Longest answer.
        pad_id: Fills rows of token ids.
        limit: A seeded sample of so many passages; `None` takes all.
        seed: Of the sample, and of the batches.

    Attributes:
        counts: What became of the questions.

    Raises:
        ConfigError: there is no such split, there are no answers, or none is left.
        DataError: a file of the dataset breaks a rule.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        reader: PassageReader,
        *,
        max_phrase_tokens: int,
        pad_id: int,
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        asked, self.counts = asked_documents(directory, split)
        self.passages: list[Passage] = []
        self.questions: list[list[Question]] = []
        read = reader.read([part.document for part in asked])
        for passage, part in zip(read, asked, strict=True):
            questions = []
            for query, answers in zip(part.queries, part.answers, strict=True):
                places = answer_places(passage, answers, max_tokens=max_phrase_tokens)
                self.counts.add(places)
                if places.spans:
                    questions.append(Question(query.text, places.spans))
            if questions:
                self.passages.append(passage)
                self.questions.append(questions)
        if not self.passages:
            raise ConfigError(f"{directory}: must have answers to learn from. {self.counts}")
        chosen = np.random.default_rng(seed).permutation(len(self.passages))[:limit]
        self._chosen, self._seed, self._pad_id = chosen, seed, pad_id

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, step: int, *, passages: int, questions_each: int) -> dict[str, Any]:
        """Returns the batch of a step.

        Args:
            step: Counted over all epochs.
            passages: P, at most.
            questions_each: Of each passage, at most.

        Returns:
            `token_ids`, `padding_mask` (P, L) int32; `queries` (Q,) str; `owners` (Q,) int32, the
            passage of each; `own` (P, L) int32, 1 = a token of the text; `starts`, `ends` (Q, L)
            int32, 1 = an answer's first, last token; `any_starts`, `any_ends` (P, L), those of
            all questions of a passage.
        """
        epoch, place = divmod(step, self.steps_per_epoch(passages))
        rng = np.random.default_rng((self._seed, epoch))
        rows = self._chosen[rng.permutation(len(self._chosen))]
        rows = rows[place * passages : (place + 1) * passages]
        rng = np.random.default_rng((self._seed, epoch, place))
        ids = [self.passages[row].token_ids for row in rows]
        length = -(-max(map(len, ids)) // 32) * 32  # few lengths, so that memory is used again
        shape = (len(rows), length)
        own, any_starts, any_ends = (np.zeros(shape, np.int32) for _ in range(3))
        taken: list[tuple[int, Question]] = []
        for number, row in enumerate(rows):
            passage, questions = self.passages[row], self.questions[row]
            own[number, passage.first : passage.first + len(passage.spans)] = 1
            for question in questions:
                _mark(any_starts[number], any_ends[number], question, passage.first)
            order = rng.permutation(len(questions))[:questions_each]
            taken += [(number, questions[place]) for place in order]
        starts, ends = (np.zeros((len(taken), length), np.int32) for _ in range(2))
        for place, (number, question) in enumerate(taken):
            _mark(starts[place], ends[place], question, self.passages[rows[number]].first)
        return {
            "token_ids": padded(ids, self._pad_id, length),
            "padding_mask": padded([np.ones_like(row) for row in ids], 0, length),
            "queries": np.array([question.text for _, question in taken], object),
            "owners": np.array([number for number, _ in taken], np.int32),
            "own": own,
            "starts": starts,
            "ends": ends,
            "any_starts": any_starts,
            "any_ends": any_ends,
        }

    def steps_per_epoch(self, passages: int) -> int:
        """Returns how many batches hold all passages."""
        return -(-len(self._chosen) // passages)


def _mark(starts: np.ndarray, ends: np.ndarray, question: Question, first: int) -> None:
    for start, end in question.spans:
        starts[first + start] = 1
        ends[first + end] = 1
