"""Few short queries to token ids without a graph, by Hugging Face's `tokenizers`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfde.errors import ConfigError
from tfde.text.preprocessor import TextPreprocessor

# More texts, or longer ones, the graph does as fast.
_MOST_TEXTS, _MOST_CHARACTERS = 8, 1000


class NativeRows(NamedTuple):
    """What `TextPreprocessor.measured_queries` gives, with `cut_counts` of it.

    Attributes:
        token_ids: (B, L) int32.
        padding_mask: (B, L) int32, 1 = real token.
        counts: Texts, those cut, their tokens, those cut off.
    """

    token_ids: np.ndarray
    padding_mask: np.ndarray
    counts: tuple[int, int, int, int]


class NativeQueries:
    """Does for a few plain queries what a preprocessor does, in a fifth of the time.

    A call of a graph costs half a millisecond, which is what a question waits for. Plain are the
    printable characters of ASCII: what becomes of all others changes with the version of Unicode
    that a library has, and there the graph is what was exported. A text that spells out a special
    token is not plain either.

    Nothing is made before the first query that is plain.

    Args:
        preprocessor: What it is to do; its tokenizer `is_equal_in_ascii`.
    """

    def __init__(self, preprocessor: TextPreprocessor) -> None:
        self._text = text = preprocessor.text_config
        self._tokenizer = tokenizer = preprocessor.tokenizer
        mark, self._fill = preprocessor.query_mark_id, preprocessor.query_fill_id
        self._marks = int(mark is not None)
        self._before = [token for token in (tokenizer.start_id, mark) if token is not None]
        limit = text.query_max_length_tokens
        self._room = limit - 1 - len(self._before)
        self._buckets = (*(b for b in text.buckets if b < limit), limit)

    def __call__(self, texts: Sequence[str]) -> NativeRows | None:
        """Returns the rows of a few plain queries; `None` where the graph is to make them."""
        if len(texts) > _MOST_TEXTS:
            return None
        texts = [self._text.query_prompt + text for text in texts]
        if not all(map(_is_plain, texts)) or self._library is None:
            return None
        tokenizer, special = self._library
        if any(map(special.search, texts)):
            return None
        rows, cut, tokens, lost = [], 0, 0, 0
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            kept = ids
            if len(ids) > self._room:
                kept = ids[: self._room]
                if kept and kept[-1] == self._tokenizer.separator_id:
                    kept.pop()
                cut, lost = cut + 1, lost + len(ids) - len(kept)
                tokens += self._marks + len(ids)
            rows.append([*self._before, *kept, self._tokenizer.end_id])
        return self._packed(rows, (len(texts), cut, tokens, lost))

    @functools.cached_property
    def _library(self) -> tuple[Any, re.Pattern[str]] | None:
        """The library's tokenizer, and what finds its special tokens; `None`: it has no equal."""
        import tokenizers

        try:
            files = self._tokenizer.hugging_face_files(max_length_tokens=None)
        except ConfigError:
            return None
        tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        special = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        pattern = "|".join(map(re.escape, special))
        return tokenizer, re.compile(pattern or r"\Z.", re.IGNORECASE)

    def _packed(self, rows: list[list[int]], counts: tuple[int, int, int, int]) -> NativeRows:
        longest = max(map(len, rows), default=1)
        length = next(b for b in self._buckets if b >= longest)
        padding = self._tokenizer.pad_id
        if self._fill is not None:
            length, padding = self._buckets[-1], self._fill
        token_ids = np.full((len(rows), length), padding, np.int32)
        padding_mask = np.zeros((len(rows), length), np.int32)
        for number, row in enumerate(rows):
            token_ids[number, : len(row)] = row
            padding_mask[number, : len(row)] = 1
        return NativeRows(token_ids, padding_mask, counts)


def native_queries(preprocessor: TextPreprocessor) -> NativeQueries | None:
    """Returns what makes the rows of plain queries; `None` where only the graph can."""
    return NativeQueries(preprocessor) if preprocessor.tokenizer.is_equal_in_ascii else None


def _is_plain(text: str) -> bool:
    return len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable()
