"""What a search returns."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import regex

SNIPPET_CHARACTERS = 300
_SLACK = 1.2  # a text that is hardly longer is shown whole
_LONGEST_WORD = 40  # of language
_LEAD = 100  # characters that lead up to the words, where more follows them
_STOP_WORDS = """
and are can does for from has have how into its not that the this was what when where which who
why will with you
""".split()  # noqa: SIM905
_WORD = regex.compile(r"[^\W_]+")  # whose letters may have vowel signs
# A sentence with the white space behind it; a line's end ends one.
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?]+|[。！？]+|\n|$)\s*")


class Hit(NamedTuple):
    """One answer to a query: its rank from 1, its score and the document.

    `metadata` is what is known of the document beyond title and text; `None` is nothing.
    """

    rank: int
    score: float
    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """Returns the fields by name, without `metadata` where there is none."""
        fields = self._asdict()
        if self.metadata is None:
            del fields["metadata"]
        return fields


class Passage(NamedTuple):
    """What is shown of a document."""

    title: str = ""
    text: str = ""
    metadata: dict[str, Any] | None = None


def read_passages(
    doc_ids: Sequence[str],
    titles: Iterable[str],
    texts: Iterable[str],
    metadata: Iterable[str] | None,
) -> dict[str, Passage]:
    """Returns passages by id, from what the model `documents` says of them.

    Args:
        doc_ids: The ids.
        titles: Their titles.
        texts: Their texts.
        metadata: JSON objects, "" for none; `None` where no document has metadata.
    """
    written = [""] * len(doc_ids) if metadata is None else metadata
    found = (json.loads(text) if text else None for text in written)
    passages = map(Passage, titles, texts, found)
    return dict(zip(doc_ids, passages, strict=True))


def make_hits(
    doc_ids: Iterable[Sequence[str]],
    scores: Iterable[Sequence[float]],
    passages: Mapping[str, Passage],
) -> list[list[Hit]]:
    """Returns the hits of each query; a document without passage has empty texts."""
    return [
        [
            Hit(rank, float(score), doc_id, *passages.get(doc_id, Passage()))
            for rank, (doc_id, score) in enumerate(zip(ids, row, strict=True), start=1)
        ]
        for ids, row in zip(doc_ids, scores, strict=True)
    ]


def snippet_of(text: str, query: str) -> str:
    """Returns the sentences in a row that hold the most words of a query; of equals, the first.

    Args:
        text: The passage. One of at most 360 characters is returned as it is.
        query: Whose words count, but for the most common English ones.

    Returns:
        About 300 characters at most, with " …" where something was left out; lines stay lines.
    """
    if len(text) <= SNIPPET_CHARACTERS * _SLACK:
        return text
    places = _places(text, query)
    sentences = [found.span() for found in _SENTENCE.finditer(text) if found[0]]
    known = _words_of(sentences, places)
    best, first, last, stop = -1, 0, 0, 0
    inside: Counter[str] = Counter()  # the words between start and stop
    for start in range(len(sentences)):
        reached, stop = stop, _stop_of(text, sentences, start, stop)
        for words in known[reached:stop]:
            inside.update(words)
        if len(+inside) > best:
            best, first, last = len(+inside), start, stop
        inside.subtract(known[start])
    found = next((number for number in range(first, last) if known[number]), first)
    while last < len(sentences) and sentences[found][0] - sentences[first][0] > _LEAD:
        first += 1
        last = _stop_of(text, sentences, first, last)
    begin, end = sentences[first][0], sentences[last - 1][1]
    place = next((place - begin for place, _ in places if begin <= place < end), 0)
    chosen = _cut_around(text[begin:end].strip(), place)
    before = "… " if first and not chosen.startswith("…") else ""
    after = " …" if last < len(sentences) and not chosen.endswith("…") else ""
    return f"{before}{chosen}{after}"


def _stop_of(text: str, sentences: list[tuple[int, int]], start: int, stop: int) -> int:
    """The first sentence, from `stop` on, that is too much for a snippet from `start` on."""
    begin = sentences[start][0]
    while stop <= start or (
        stop < len(sentences)
        and len(text[begin : sentences[stop][1]].rstrip()) <= SNIPPET_CHARACTERS
    ):
        stop += 1
    return stop


def _places(text: str, query: str) -> list[tuple[int, str]]:
    """Where words of the query stand in a text, and their stems."""
    words = query_words(query)
    if not words:
        return []
    found = ((match.start(), _stem(match[0].lower())) for match in _WORD.finditer(text))
    return [(place, stem) for place, stem in found if stem in words]


def _words_of(sentences: list[tuple[int, int]], places: list[tuple[int, str]]) -> list[set[str]]:
    known: list[set[str]] = [set() for _ in sentences]
    number = 0
    for place, stem in places:
        while place >= sentences[number][1]:
            number += 1
        known[number].add(stem)
    return known


def query_words(query: str) -> set[str]:
    """Returns the stems of the words that say something of a query."""
    words = _WORD.findall(query.lower())
    return {
        _stem(word)
        for word in words
        if (len(word) > 2 and word not in _STOP_WORDS) or not word.isascii()
    }


def _stem(word: str) -> str:
    return _stem_of_word(word) if len(word) <= _LONGEST_WORD else word


@functools.lru_cache(1 << 16)
def _stem_of_word(word: str) -> str:
    """Brings "directories" and "copying" to "directory" and "copy", well enough to find them."""
    if len(word) > 5:
        word = re.sub(r"(?:ing|ed|es)$", "", word)
    if len(word) > 3:
        word = re.sub(r"s$", "", word)
    return re.sub(r"[eiy]$", "", word) if len(word) > 3 else word


def _cut_around(sentence: str, place: int) -> str:
    """Cuts what is too long by itself, from a little before a place on."""
    if len(sentence) <= SNIPPET_CHARACTERS * _SLACK:
        return sentence
    start = 0
    if place >= SNIPPET_CHARACTERS // 2:
        start = sentence.find(" ", place - SNIPPET_CHARACTERS // 4, place) + 1 or place
    rest = sentence[start:]
    before = "… " if start else ""
    if len(rest) <= SNIPPET_CHARACTERS:
        return before + rest
    end = rest.rfind(" ", 0, SNIPPET_CHARACTERS)
    return f"{before}{rest[: end if end > 0 else SNIPPET_CHARACTERS]} …"
