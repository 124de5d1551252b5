"""A SentencePiece vocabulary from a corpus, in T5's layout."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

from tfde.argument_types import typed
from tfde.errors import ConfigError, require

_SMALLEST = 4  # the special pieces and one more
_MOST_BYTES = 1 << 16  # of a sentence


@typed
def train_sentencepiece(
    texts: Iterable[str],
    output: str | Path,
    *,
    vocabulary_size: int = 8000,
    character_coverage: float = 0.9995,
    max_sentences: int = 1_000_000,
) -> Path:
    """Trains a unigram SentencePiece model with padding 0, `</s>` 1 and unknown 2.

    The same texts in the same order give the same model.

    Args:
        texts: The corpus; read once and not held (the trainer holds the sentences it uses).
            Line breaks end a sentence; empty ones do not count, and one of more than 64 KiB is
            cut at white space.
        output: The `.model` file; its directory is made.
        vocabulary_size: Number of pieces, special ones included.
        character_coverage: Share of all characters that get a piece of their own; the rarest
            of the rest become unknown.
        max_sentences: The trainer stops reading after so many.

    Returns:
        `output`.

    Raises:
        ConfigError: the corpus is empty, or too small or too rich in characters for
            `vocabulary_size`; the message names the size that would do.

    Source: Kudo 2018 (unigram language model), Raffel et al. 2020 (layout of the ids).
    """
    enough = vocabulary_size >= _SMALLEST
    require(enough, "vocabulary_size", f"at least {_SMALLEST}", vocabulary_size)
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    sentences = _Sentences(texts, max_sentences)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary_size,
            character_coverage=character_coverage,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            num_threads=1,  # the order of float sums, and so the model, depends on it
            minloglevel=2,
            # It drops longer ones; its default is 4192 bytes.
            max_sentence_length=_MOST_BYTES,
        )
    except (RuntimeError, OSError) as error:
        if sentences.error is not None:
            raise sentences.error from None
        raise _explained(error, vocabulary_size, sentences.count) from error
    partial = output.with_name(f"{output.name}.partial")
    partial.write_bytes(model.getvalue())
    os.replace(partial, output)
    return output


class _Sentences:
    """The non-empty lines of texts, counted; keeps an error that the trainer would swallow."""

    def __init__(self, texts: Iterable[str], limit: int) -> None:
        self._texts, self._limit, self.count = texts, limit, 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self._lines():
                if self.count == self._limit:
                    return
                self.count += 1
                yield line
        except Exception as error:
            self.error = error
            raise

    def _lines(self) -> Iterator[str]:
        for text in self._texts:
            for line in text.splitlines():
                # The trainer drops sentences with a NUL.
                if line := line.replace("\0", " ").strip():
                    yield from _cut(line)


def _cut(line: str) -> Iterator[str]:
    """Yields the line, in pieces that the trainer takes; it keeps no white space at ends."""
    if len(line.encode()) <= _MOST_BYTES:
        yield line
        return
    words: list[str] = []
    size = 0
    for word in line.split():
        size += len(word.encode()) + 1
        if words and size > _MOST_BYTES:
            yield " ".join(words)
            words, size = [], len(word.encode()) + 1
        words.append(word)
    yield " ".join(words)


def _explained(error: Exception, vocabulary_size: int, count: int) -> ConfigError:
    if not count:
        return ConfigError("`texts` must hold at least one text that is not empty. Received: none")
    message = " ".join(str(error).split())
    if found := re.search(r"set it to a value <= (\d+)", message):
        return ConfigError(
            f"`vocabulary_size` must be at most {found[1]} for this corpus of {count} sentences."
            f" Received: {vocabulary_size} (in a recipe: model.backbone.vocabulary_size)"
        )
    if "required_chars" in message or "smaller than required" in message:
        numbers = re.findall(r"\d+", message)
        return ConfigError(
            "`vocabulary_size` must hold every character that `character_coverage` asks for."
            f" Received: {vocabulary_size}; {numbers[-1] if numbers else 'more'} are needed"
        )
    return ConfigError(
        f"`texts` must be a corpus SentencePiece can learn from. Received: {message}"
    )
