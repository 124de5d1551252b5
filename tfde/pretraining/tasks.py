"""The pre-training tasks: from a page and random draws to one pair of query and document.

Each is a pure function of a page (for links of two pages), of the draws, and of where in the page
it works, so that one process, many processes or a cluster make the same pairs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Literal, get_args

from tfde.data.ids import id_of_text
from tfde.pretraining.page_store import Passage, SplitPage
from tfde.types import Document, Pair, Query

Task = Literal["ict", "bfs", "wlp", "span_crop", "question"]
TASKS: tuple[str, ...] = get_args(Task)
# A span takes 5 % to 50 % of a passage, and one word in ten is deleted from it or replaced.
SPAN_SHARES = (0.05, 0.5)
WORD_NOISE = 0.1
# With fewer words, 5 % of them would not be one.
MIN_CROP_WORDS = 20
_WORDS = struct.Struct("<8Q")
_MASK = (1 << 64) - 1
_ROUNDS = 6


def ict_pair(page: SplitPage, number: int, draws: Draws, *, title: bool = True) -> Pair:
    """Inverse cloze task: a sentence of a passage, and the rest of the passage.

    Args:
        page: The page.
        number: Which of its passages, one of at least two sentences.
        draws: Draws the sentence, each as likely.
        title: Whether the document has the page's title.

    Source: Chang et al. 2020, section 3 (Lee et al. 2019), and for the title section 4.1.
    """
    passage = page.passages[number]
    start, stop = passage.sentences[draws.below(len(passage.sentences))]
    before, after = passage.text[:start].rstrip(), passage.text[stop:].lstrip()
    # Some languages put nothing between sentences.
    spaced = len(before) < start or len(after) < len(passage.text) - stop
    gap = " " if before and after and spaced else ""
    return _pair(passage.text[start:stop], page, f"{before}{gap}{after}", title)


def bfs_pair(page: SplitPage, draws: Draws, *, title: bool = False) -> Pair:
    """Body first selection: a sentence of the first section, and a passage of the same page.

    Args:
        page: The page, of at least two passages.
        draws: Draws the sentence, each as likely, then the passage, each as likely but the one
            that the sentence stands in.
        title: Whether the document has the page's title.

    Source: Chang et al. 2020, section 3; that the query's own passage is left out: derived here.
    """
    own, query = _first_section_sentence(page, draws)
    number = draws.below(len(page.passages) - 1)
    number += number >= own
    return _pair(query, page, page.passages[number].text, title)


def wlp_pair(
    page: SplitPage,
    linking: SplitPage,
    numbers: Sequence[int],
    draws: Draws,
    *,
    title: bool = False,
) -> Pair:
    """Wiki link prediction: a sentence of the first section, and a passage that links to the page.

    Args:
        page: The page of the query.
        linking: Another page that has a link to `page`.
        numbers: Which of its passages have the link; empty where none is known, then any may.
        draws: Draws the sentence, each as likely, then the passage, each as likely.
        title: Whether the document has the title of `linking`.

    Source: Chang et al. 2020, section 3.
    """
    _, query = _first_section_sentence(page, draws)
    numbers = numbers or range(len(linking.passages))
    passage = linking.passages[numbers[draws.below(len(numbers))]]
    return _pair(query, linking, passage.text, title)


def span_crop_pair(page: SplitPage, number: int, draws: Draws, *, title: bool = False) -> Pair:
    """Span cropping: two random spans of a passage, in each of which words are deleted or replaced.

    Length and place of a span are uniform, the length between the shares `SPAN_SHARES` of the
    passage. For each span it is drawn whether its words are deleted or replaced by other words of
    the passage, either as likely; each word is with the probability `WORD_NOISE`, but a span
    keeps at least one.

    Args:
        page: The page.
        number: Which of its passages, one of at least `MIN_CROP_WORDS` words.
        draws: Draws lengths, places, deletion or replacement, and the words.
        title: Whether the document has the page's title.

    Source: Ni et al. 2021, appendix (CL-Pretrain); shares and probability as Izacard et al. 2022;
    where the other words come from: derived here.
    """
    words = page.passages[number].text.split()
    spans = []
    for _ in range(2):
        shortest, longest = (int(share * len(words)) for share in SPAN_SHARES)
        length = shortest + draws.below(longest - shortest + 1)
        start = draws.below(len(words) - length + 1)
        span = words[start : start + length]
        replaced = bool(draws.below(2))
        noisy = []
        for word in span:
            if draws.fraction() >= WORD_NOISE:
                noisy.append(word)
            elif replaced:
                noisy.append(words[draws.below(len(words))])
        spans.append(noisy or span[-1:])
    return _pair(" ".join(spans[0]), page, " ".join(spans[1]), title)


def question_pair(page: SplitPage, number: int, *, title: bool = False) -> Pair:
    """Question and answer: a heading that is a question, and its section.

    Args:
        page: The page.
        number: Which of its question headings.
        title: Whether the document has the page's title.

    Source: derived here, in place of the community question-answer pairs of Ni et al. 2021.
    """
    question = page.questions[number]
    texts = [page.passages[place].text for place in range(question.start, question.stop)]
    return _pair(question.heading, page, " ".join(texts), title)


def has_ict(passage: Passage) -> bool:
    """Whether a passage has a pair for the inverse cloze task."""
    return len(passage.sentences) > 1


def has_span_crop(passage: Passage) -> bool:
    """Whether a passage has a pair for span cropping."""
    return len(passage.text.split()) >= MIN_CROP_WORDS


def _first_section_sentence(page: SplitPage, draws: Draws) -> tuple[int, str]:
    """Returns the number of the passage and the sentence."""
    passages = [page.passages[number] for number in range(page.num_first)]
    place = draws.below(sum(len(passage.sentences) for passage in passages))
    for number, passage in enumerate(passages):
        if place < len(passage.sentences):
            start, stop = passage.sentences[place]
            return number, passage.text[start:stop]
        place -= len(passage.sentences)
    raise IndexError(f"{page.page_id}: its first section must have a sentence.")


def _pair(query: str, page: SplitPage, text: str, title: bool) -> Pair:
    heading = page.title if title else ""
    doc_id = id_of_text(text, title=heading)
    return Pair(Query(id_of_text(query), query), Document(doc_id, heading, text), (), (doc_id,))


class Draws:
    """Uniform random numbers from a key.

    Args:
        key: Numbers and texts; equal keys draw equal numbers.
    """

    def __init__(self, *key: int | str) -> None:
        self._hash = hashlib.blake2b(repr(key).encode(), digest_size=64)
        self._words: list[int] = []
        self._block = 0

    def word(self) -> int:
        """Returns a number of 64 bits."""
        if not self._words:
            block = self._hash.copy()
            block.update(self._block.to_bytes(8, "little"))
            self._block += 1
            self._words = list(_WORDS.unpack(block.digest()))
        return self._words.pop()

    def below(self, bound: int) -> int:
        """Returns a whole number in [0, bound)."""
        return (self.word() * bound) >> 64

    def fraction(self) -> float:
        """Returns a number in [0, 1)."""
        return (self.word() >> 11) * 2.0**-53


class ShuffledRange:
    """A random order of the numbers below `size` that takes no memory.

    A Feistel network permutes the numbers of an even number of bits; one that is too large is
    sent through again, until it is below `size` (cycle walking), which keeps it a permutation.

    Args:
        size: How many numbers.
        key: As `Draws`.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", methods 2 and 3.
    """

    def __init__(self, size: int, *key: int | str) -> None:
        draws = Draws("shuffled_range", *key)
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [draws.word() for _ in range(_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """Returns the number that stands at `place`."""
        if not 0 <= place < self.size:
            raise IndexError(f"`place` must be in [0, {self.size}). Received: {place}")
        half, mask = self._half, (1 << self._half) - 1
        value = place
        while True:
            left, right = value >> half, value & mask
            for key in self._keys:
                # A number's product with an odd constant is well mixed in its upper bits.
                mixed = ((right ^ key) * 0xBF58476D1CE4E5B9) & _MASK
                mixed = ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB) & _MASK
                left, right = right, left ^ (mixed >> (64 - half))
            value = left << half | right
            if value < self.size:
                return value
