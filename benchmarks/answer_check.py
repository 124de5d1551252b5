"""What a search may answer while documents come and go: all scores and all changes are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-4  # of a score; what float32 in another order of sums makes of unit vectors


class Found(NamedTuple):
    """A result: its id, which text it showed (a column of the similarity), its score."""

    doc_id: str
    text: int
    score: float


class AnswerCheck:
    """Knows which texts are in an index under which ids, and since when that is certain.

    A text is certain from the moment in which its change was acknowledged until the next change
    to it is sent. A search must return every certain text that is good enough, none that is
    certainly gone, and the right score for each.

    Args:
        similarity: `(Q, T)` float32, the score of each query with each text.
        ids: Ids by text, of what is there at the start.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        similarity: np.ndarray,
        ids: Mapping[int, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        texts = similarity.shape[1]
        self.clock = clock
        self.texts: dict[str, int] = {doc_id: text for text, doc_id in ids.items()}
        self._similarity = similarity
        self._ids: list[str | None] = [ids.get(text) for text in range(texts)]
        self._ever: list[set[str]] = [
            {ids[text]} if text in ids else set() for text in range(texts)
        ]
        self._there = np.array([text in ids for text in range(texts)])
        self._since = np.full(texts, -np.inf)

    def sent(self, changes: Mapping[str, int | None]) -> None:
        """Notes that changes are on their way: ids with their new text, `None` to delete."""
        for doc_id, text in changes.items():
            if (old := self.texts.get(doc_id)) is not None:
                self._since[old] = np.inf
            if text is not None:
                self._since[text] = np.inf
                self._ever[text].add(doc_id)

    def acknowledged(self, changes: Mapping[str, int | None]) -> None:
        """Notes that changes which were sent are made."""
        now = self.clock()
        for doc_id, text in changes.items():
            if (old := self.texts.pop(doc_id, None)) is not None:
                self._ids[old], self._there[old], self._since[old] = None, False, now
            if text is not None:
                self.texts[doc_id] = text
                self._ids[text], self._there[text], self._since[text] = doc_id, True, now

    def fault(self, query: int, k: int, results: Sequence[Found], *, asked_at: float) -> str:
        """Returns what is wrong with an answer that has just come, "" if nothing is.

        Args:
            query: Row of the similarity.
            k: How many results were asked for; as many must be there.
            results: The answer.
            asked_at: The clock before the question was sent.
        """
        if len(results) != k or len({result.doc_id for result in results}) != k:
            return f"{len(results)} results, some perhaps twice; {k} were asked for"
        scores, certain = self._similarity[query], self._since <= asked_at
        previous = np.inf
        for doc_id, text, score in results:
            if certain[text] and self._ids[text] != doc_id:
                return f"{doc_id} shows a text that was deleted, replaced or is another's"
            if doc_id not in self._ever[text]:
                return f"{doc_id} never had the text that it shows"
            if abs(score - scores[text]) > TOLERANCE:
                return f"{doc_id} has score {score:.6f}, expected {scores[text]:.6f}"
            if score > previous:
                return f"{doc_id} stands below a lower score"
            previous = score
        missing = certain & self._there
        missing[[result.text for result in results]] = False
        if missing.any():
            best = int(np.argmax(np.where(missing, scores, -np.inf)))
            if scores[best] > results[-1].score + TOLERANCE:
                return f"{self._ids[best]} with score {scores[best]:.6f} is missing"
        return ""
