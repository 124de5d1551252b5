"""Few short queries to token ids without a graph, by Hugging Face's `tokenizers`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfde.errors import ConfigError, CorruptError, shorten

if TYPE_CHECKING:  # a server reads what was written, without Keras
    from tfde.text.preprocessor import TextPreprocessor

# The file's name, beside a tower.
NATIVE_QUERIES = "native_queries.json"
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


class _Frame(NamedTuple):
    """What a preprocessor puts around the tokens of a query."""

    prompt: str
    start_id: int | None
    mark_id: int | None
    separator_id: int
    end_id: int
    pad_id: int
    fill_id: int | None
    buckets: tuple[int, ...]  # the last is the longest query


class NativeQueries:
    """Does for a few plain queries what a preprocessor does, in a fifth of the time.

    A call of a graph costs half a millisecond, which is what a question waits for. Plain are the
    printable characters of ASCII: what becomes of all others changes with the version of Unicode
    that a library has, and there the graph is what was exported. A text that spells out a special
    token is not plain either.

    Nothing is made before the first query that is plain. Safe to call from many threads.

    Args:
        frame: What stands around the tokens.
        tokenizer_json: Returns Hugging Face's tokenizer as JSON; `None`: it has no equal there.
    """

    def __init__(self, frame: _Frame, tokenizer_json: Callable[[], str | None]) -> None:
        self._frame = frame
        self._tokenizer_json = tokenizer_json
        self._before = [token for token in (frame.start_id, frame.mark_id) if token is not None]
        self._room = frame.buckets[-1] - 1 - len(self._before)

    def __call__(self, texts: Sequence[str]) -> NativeRows | None:
        """Returns the rows of a few plain queries; `None` where the graph is to make them."""
        if len(texts) > _MOST_TEXTS:
            return None
        texts = [self._frame.prompt + text for text in texts]
        if not all(map(_is_plain, texts)) or self._library is None:
            return None
        tokenizer, special = self._library
        if any(map(special.search, texts)):
            return None
        rows, cut, tokens, lost = [], 0, 0, 0
        marks = int(self._frame.mark_id is not None)
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            kept = ids
            if len(ids) > self._room:
                kept = ids[: self._room]
                if kept and kept[-1] == self._frame.separator_id:
                    kept.pop()
                cut, lost = cut + 1, lost + len(ids) - len(kept)
                tokens += marks + len(ids)
            rows.append([*self._before, *kept, self._frame.end_id])
        return self._packed(rows, (len(texts), cut, tokens, lost))

    @functools.cached_property
    def _library(self) -> tuple[Any, re.Pattern[str]] | None:
        """The library's tokenizer, and what finds its special tokens; `None`: it has no equal."""
        import tokenizers

        as_json = self._tokenizer_json()
        if as_json is None:
            return None
        tokenizer = tokenizers.Tokenizer.from_str(as_json)
        special = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        pattern = "|".join(map(re.escape, special))
        return tokenizer, re.compile(pattern or r"\Z.", re.IGNORECASE)

    def _packed(self, rows: list[list[int]], counts: tuple[int, int, int, int]) -> NativeRows:
        longest = max(map(len, rows), default=1)
        length = next(b for b in self._frame.buckets if b >= longest)
        padding = self._frame.pad_id
        if self._frame.fill_id is not None:
            length, padding = self._frame.buckets[-1], self._frame.fill_id
        token_ids = np.full((len(rows), length), padding, np.int32)
        padding_mask = np.zeros((len(rows), length), np.int32)
        for number, row in enumerate(rows):
            token_ids[number, : len(row)] = row
            padding_mask[number, : len(row)] = 1
        return NativeRows(token_ids, padding_mask, counts)


def native_queries(preprocessor: TextPreprocessor) -> NativeQueries | None:
    """Returns what makes the rows of plain queries; `None` where only the graph can."""
    if not preprocessor.tokenizer.is_equal_in_ascii:
        return None
    return NativeQueries(_frame_of(preprocessor), lambda: _tokenizer_json(preprocessor))


def write_native_queries(preprocessor: TextPreprocessor, path: Path) -> None:
    """Writes what `read_native_queries` reads; nothing where only the graph can make the rows."""
    if not preprocessor.tokenizer.is_equal_in_ascii:
        return
    tokenizer = _tokenizer_json(preprocessor)
    if tokenizer is not None:
        content = {"frame": _frame_of(preprocessor)._asdict(), "tokenizer": tokenizer}
        path.write_text(json.dumps(content), "utf-8")


def read_native_queries(path: Path) -> NativeQueries | None:
    """Returns what `write_native_queries` wrote; `None` where there is no such file.

    Raises:
        CorruptError: it cannot be read.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        frame, tokenizer = _Frame(**content["frame"]), content["tokenizer"]
        queries = NativeQueries(frame, lambda: tokenizer)
        queries(["a"])
    except Exception as error:  # the library raises bare ones
        raise CorruptError(
            f"{path}: does not say how queries become tokens."
            f" Received: {shorten(' '.join(str(error).split()))}"
        ) from error
    return queries


def _frame_of(preprocessor: TextPreprocessor) -> _Frame:
    text, tokenizer = preprocessor.text_config, preprocessor.tokenizer
    limit = text.query_max_length_tokens
    return _Frame(
        prompt=text.query_prompt,
        start_id=tokenizer.start_id,
        mark_id=preprocessor.query_mark_id,
        separator_id=tokenizer.separator_id,
        end_id=tokenizer.end_id,
        pad_id=tokenizer.pad_id,
        fill_id=preprocessor.query_fill_id,
        buckets=(*(b for b in text.buckets if b < limit), limit),
    )


def _tokenizer_json(preprocessor: TextPreprocessor) -> str | None:
    try:
        files = preprocessor.tokenizer.hugging_face_files(max_length_tokens=None)
    except ConfigError:
        return None
    return files["tokenizer.json"].decode()


def _is_plain(text: str) -> bool:
    return len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable()
