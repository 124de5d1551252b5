"""Passages as token ids whose places in the raw text are known, and answers in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from tfde.config.phrases import TEXT_ALONE, WITH_TITLE
from tfde.errors import require
from tfde.text.preprocessor import TextPreprocessor
from tfde.types import Document

_FILE = "tokenizer.json"
_INSIDE_WORDS = r"(?<!\w)%s(?!\w)"


class Passage(NamedTuple):
    """A document as the passage encoder reads it.

    Attributes:
        document: What was read.
        token_ids: (L,) int32, special tokens and the title's included.
        first: Where the text's own tokens begin in them.
        spans: (T, 2) int32, the first character of each of the text's tokens, and the one after
            its last.
        cut: How many of the text's tokens did not fit.
    """

    document: Document
    token_ids: np.ndarray
    first: int
    spans: np.ndarray
    cut: int

    @property
    def end(self) -> int:
        """The first character of the text that the encoder does not see."""
        return int(self.spans[-1, 1]) if len(self.spans) else 0


class PassageReader:
    """Tokenizes passages with the ids of a preprocessor's `documents`, and keeps the offsets.

    The `tokenizers` library does it, with the files of an equal tokenizer that ours writes.

    Args:
        preprocessor: Its template must be `{text}` or `{title} [SEP] {text}`, without a prompt.

    Raises:
        ConfigError: it is not.
    """

    def __init__(self, preprocessor: TextPreprocessor) -> None:
        text = preprocessor.text_config
        known = text.document_template in (TEXT_ALONE, WITH_TITLE) and not text.document_prompt
        rule = f"{TEXT_ALONE!r} or {WITH_TITLE!r}, without a prompt, for phrases"
        require(known, "document_template", rule, text.document_prompt + text.document_template)
        tokenizer = preprocessor.tokenizer
        files = tokenizer.hugging_face_files(max_length_tokens=None)
        self._tokenizer = tokenizers.Tokenizer.from_str(files[_FILE].decode())
        self._titles = text.document_template == WITH_TITLE
        self._limit = text.document_max_length_tokens
        self._start = [] if tokenizer.start_id is None else [tokenizer.start_id]
        self._end, self._separator = tokenizer.end_id, tokenizer.separator_id

    def read(self, documents: Iterable[Document]) -> list[Passage]:
        """Returns the passages of documents, in their order."""
        documents = list(documents)
        texts = [document.text for document in documents]
        titles = [document.title if self._titles else "" for document in documents]
        encoded = self._encode(texts)
        return [
            self._passage(*parts)
            for parts in zip(documents, self._encode(titles), encoded, strict=True)
        ]

    def _encode(self, texts: list[str]) -> list[tokenizers.Encoding]:
        found: list[tokenizers.Encoding] = self._tokenizer.encode_batch(
            texts, add_special_tokens=False
        )
        return found

    def _passage(
        self, document: Document, title: tokenizers.Encoding, text: tokenizers.Encoding
    ) -> Passage:
        before = [*title.ids, self._separator] if title.ids and text.ids else title.ids
        tokens = [*before, *text.ids]
        kept = room = self._limit - len(self._start) - 1
        if len(tokens) > room and tokens[room - 1] == self._separator:
            kept -= 1  # a separator does not come last
        before = before[:kept]
        offsets = text.offsets[: kept - len(before)]
        spans = np.array([_trimmed(document.text, *span) for span in offsets], np.int32)
        spans = spans.reshape(-1, 2)
        token_ids = [*self._start, *tokens[:kept], self._end]
        first = len(self._start) + len(before)
        cut = len(text.ids) - len(spans)
        return Passage(document, np.array(token_ids, np.int32), first, spans, cut)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns a token's place without white space around it, which SentencePiece counts in."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


class Places(NamedTuple):
    """Where answers stand in a passage's text, in its tokens.

    Attributes:
        spans: First and last token of each occurrence, counted from the text's first.
        found: Whether an answer stands in the text at all, cut off or not.
    """

    spans: tuple[tuple[int, int], ...]
    found: bool


def answer_places(passage: Passage, answers: Sequence[str], *, max_tokens: int) -> Places:
    """Returns the occurrences of answers that the encoder sees, of at most `max_tokens`.

    An answer is looked for as it is spelled; occurrences between the bounds of words count, and
    others only where there are none. What begins or ends inside of a token takes the whole token.

    Args:
        passage: Where they are looked for.
        answers: The accepted ones.
        max_tokens: Longest phrase.
    """
    text = passage.document.text
    spans: dict[tuple[int, int], None] = {}
    found = False
    starts, ends = passage.spans[:, 0], passage.spans[:, 1]
    for answer in answers:
        if not answer.strip():
            continue
        literal = re.escape(answer.strip())
        matches = list(re.finditer(_INSIDE_WORDS % literal, text)) or list(
            re.finditer(literal, text)
        )
        found = found or bool(matches)
        for match in matches:
            if match.end() > passage.end:
                continue
            first = int(np.searchsorted(ends, match.start(), side="right"))
            last = int(np.searchsorted(starts, match.end(), side="left")) - 1
            if 0 <= last - first < max_tokens:
                spans[first, last] = None
    return Places(tuple(spans), found)


def padded(rows: Sequence[np.ndarray], fill: int, length: int | None = None) -> np.ndarray:
    """Returns rows (B, L) int32, filled up to the longest (or to `length`)."""
    length = length or max(map(len, rows), default=1)
    table = np.full((len(rows), length), fill, np.int32)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table
