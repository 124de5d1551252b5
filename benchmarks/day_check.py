"""What a search may answer while everything changes: all that was ever true is known, and when.

A *state* is an int32 array `(I,)`: which text (a row of the documents, a column of the similarity)
stands under the id `d0`, `d1`, ...; -1 where none does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfde.types import Document

TOLERANCE = 1e-4  # of a score; what float32 in another order of sums makes of unit vectors
SNIPPET_CHARACTERS = 400
ABSENT = -1


class Truth(NamedTuple):
    """Titles and texts `(T,)`, and the score of each query with each of them `(Q, T)` float32."""

    documents: Sequence[Document]
    similarity: np.ndarray


def hits_fault(
    truth: Truth, state: np.ndarray, query: int, k: int, hits: Sequence[Mapping[str, Any]]
) -> str:
    """Returns what is wrong with an answer in one state, "" if nothing is.

    Args:
        truth: The texts and their scores.
        state: What stood under which id.
        query: Row of the similarity.
        k: How many hits were asked for; as many as there are documents are enough.
        hits: `doc_id`, `score`, `title`; `snippet` and `text` where they were answered.
    """
    scores = truth.similarity[query]
    best = np.sort(scores[state[state != ABSENT]])[::-1][:k]
    if len(hits) != len(best) or len({hit["doc_id"] for hit in hits}) != len(best):
        return f"{len(hits)} hits, some perhaps twice, in place of {len(best)}"
    for rank, (hit, expected) in enumerate(zip(hits, best, strict=True), start=1):
        text = _text_under(hit["doc_id"], state)
        if text == ABSENT:
            return f"{hit['doc_id']} is not there"
        document = truth.documents[text]
        for name in ("title", "text"):
            if hit.get(name, getattr(document, name)) != getattr(document, name):
                return f"{hit['doc_id']} has another {name}"
        if "snippet" in hit and not _is_of(hit["snippet"], document.text):
            return f"{hit['doc_id']} has a snippet of another text"
        if abs(hit["score"] - scores[text]) > TOLERANCE:
            return f"{hit['doc_id']} has score {hit['score']:.6f}, not {scores[text]:.6f}"
        if abs(scores[text] - expected) > TOLERANCE:
            return f"rank {rank} has score {scores[text]:.6f}, not {expected:.6f}"
    return ""


def _text_under(doc_id: str, state: np.ndarray) -> int:
    number = doc_id.removeprefix("d")
    return int(state[int(number)]) if number.isdecimal() and int(number) < len(state) else ABSENT


def _is_of(snippet: str, text: str) -> bool:
    """Whether what stands between the dots of a snippet stands in the text."""
    pieces = [piece.strip() for piece in re.split(r"(?:^|\s)…(?:\s|$)", snippet) if piece.strip()]
    if not pieces:
        return not text.strip()
    return len(snippet) <= SNIPPET_CHARACTERS and all(piece in text for piece in pieces)


class IndexHistory:
    """The states of a live index by the number of their last change, from one writer.

    Args:
        truth: The texts and their scores.
        state: What is there at the start, after change 0.
    """

    def __init__(self, truth: Truth, state: np.ndarray) -> None:
        self.states = {0: state}
        self._truth = truth
        self._acknowledged = self._seen = 0
        self._pending: int | None = None

    @property
    def state(self) -> np.ndarray:
        """What is there after the last change that was acknowledged."""
        return self.states[self._acknowledged]

    def floor(self) -> int:
        """Which change every answer to a question asked now must know at least."""
        return max(self._acknowledged, self._seen)

    def sent(self, changes: Mapping[int, int]) -> None:
        """Notes that changes are on their way: numbers of ids, and their new texts or `ABSENT`."""
        state = self.state.copy()
        for number, text in changes.items():
            state[number] = text
        self._pending = self._acknowledged + len(changes)
        self.states[self._pending] = state

    def settled(self, sequence: int) -> str:
        """Notes what became of the changes on their way; returns what is wrong with that.

        Args:
            sequence: The number of the last change, as the server says.
        """
        before, pending = self._acknowledged, self._pending
        self._pending = None
        if sequence not in (before, pending):
            return f"change {sequence} is the last, in place of {before} or {pending}"
        if sequence < self._seen:
            return f"change {self._seen} was seen, and is lost"
        if pending is not None and sequence == before:
            del self.states[pending]
        self._acknowledged = sequence
        return ""

    def fault(
        self, query: int, k: int, hits: Sequence[Mapping[str, Any]], *, version: str, floor: int
    ) -> str:
        """Returns what is wrong with an answer that has just come, "" if nothing is.

        Args:
            query: Row of the similarity.
            k: How many hits were asked for.
            hits: As `hits_fault`.
            version: What the answer names, as `2.17`: generation and last change.
            floor: `floor()` before the question was sent.
        """
        sequence = int(version.partition(".")[2])
        if sequence not in self.states:
            return f"change {sequence} was never the last"  # half of a batch, or none
        if sequence < floor:
            return f"change {sequence} is the last, and {floor} was known before the question"
        if fault := hits_fault(self._truth, self.states[sequence], query, k, hits):
            return f"after change {sequence}: {fault}"
        self._seen = max(self._seen, sequence)
        return ""


class VersionHistory:
    """The states of a bundle's versions, and when each might answer.

    Args:
        truth: The texts and their scores.
        version: The one that is served at the start.
        state: What it holds.
    """

    def __init__(self, truth: Truth, version: int, state: np.ndarray) -> None:
        self.states = {version: state}
        self._truth = truth
        self._times = [(version, -np.inf, np.inf)]  # since, until

    def begins(self, version: int, now: float) -> None:
        """Notes that a version may answer from now on, beside those that may already."""
        self._times.append((version, now, np.inf))

    def alone(self, version: int, now: float) -> None:
        """Notes that no other version may answer questions that are sent from now on."""
        self._times = [
            (number, since, until if number == version else min(until, now))
            for number, since, until in self._times
        ]

    def fault(
        self,
        query: int,
        k: int,
        hits: Sequence[Mapping[str, Any]],
        *,
        asked_at: float,
        now: float,
        version: int | None = None,
    ) -> str:
        """Returns what is wrong with an answer that has just come, "" if nothing is.

        Args:
            query: Row of the similarity.
            k: How many hits were asked for.
            hits: As `hits_fault`.
            asked_at: When the question was sent.
            now: When the answer came.
            version: What the answer names; `None` where it names none, and may be of any one.
        """
        allowed = {n for n, since, until in self._times if since <= now and asked_at <= until}
        if version is not None and version not in allowed:
            return f"version {version} answers, in place of {sorted(allowed)}"
        found = {
            number: hits_fault(self._truth, self.states[number], query, k, hits)
            for number in (allowed if version is None else {version})
        }
        if "" in found.values():
            return ""
        return "; ".join(f"in version {number}: {fault}" for number, fault in found.items())
