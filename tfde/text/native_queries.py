"""Few short queries to token ids without a graph, by Hugging Face's `tokenizers`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
    """Does for a few plain queries what a preprocessor does, in a tenth of the time.

    A call of a graph costs half a millisecond, which is what a question waits for. Plain are the
    printable characters of ASCII: what becomes of all others changes with the version of Unicode
    that a library has, and there the graph is what was exported. A text that spells out a special
    token is not plain either.

    Args:
        preprocessor: What it is to do.

    Raises:
        ConfigError: Hugging Face's libraries know no such tokenizer.
    """

    def __init__(self, preprocessor: TextPreprocessor) -> None:
        import tokenizers

        self._text = text = preprocessor.text_config
        self._tokenizer = tokenizer = preprocessor.tokenizer
        files = tokenizer.hugging_face_files(max_length_tokens=None)
        self._native = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        special = (token.content for token in self._native.get_added_tokens_decoder().values())
        self._special = re.compile("|".join(map(re.escape, special)) or r"\Z.", re.IGNORECASE)
        mark = tokenizer.token_id(text.query_mark) if text.query_mark else None
        self._marks = int(mark is not None)
        self._before = [token for token in (tokenizer.start_id, mark) if token is not None]
        limit = text.query_max_length_tokens
        self._room = limit - 1 - len(self._before)
        self._buckets = (*(b for b in text.buckets if b < limit), limit)
        self._fill = tokenizer.token_id(text.query_fill) if text.query_fill else None

    def __call__(self, texts: Sequence[str]) -> NativeRows | None:
        """Returns the rows of a few plain queries; `None` where the graph is to make them."""
        if len(texts) > _MOST_TEXTS:
            return None
        texts = [self._text.query_prompt + text for text in texts]
        if not all(map(self._is_plain, texts)):
            return None
        rows, cut, tokens, lost = [], 0, 0, 0
        for text in texts:
            ids = self._native.encode(text, add_special_tokens=False).ids
            kept = ids
            if len(ids) > self._room:
                kept = ids[: self._room]
                if kept and kept[-1] == self._tokenizer.separator_id:
                    kept.pop()
                cut, lost = cut + 1, lost + len(ids) - len(kept)
                tokens += self._marks + len(ids)
            rows.append([*self._before, *kept, self._tokenizer.end_id])
        return self._packed(rows, (len(texts), cut, tokens, lost))

    def _is_plain(self, text: str) -> bool:
        plain = len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable()
        return plain and self._special.search(text) is None

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
    try:
        return NativeQueries(preprocessor)
    except ConfigError:
        return None
