"""From queries, titles and texts to padded batches of token ids."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Self

import tensorflow as tf

from tfde.config import TextConfig, from_mapping
from tfde.errors import ConfigError
from tfde.text.tokenizer import Tokenizer, load_tokenizer

PREPROCESSOR_FILE = "preprocessor.json"
SEPARATOR = "[SEP]"
_STRINGS = tf.TensorSpec([None], tf.string)


class TextPreprocessor(tf.Module):
    """Formats, tokenizes, truncates and pads, alike in training, encoding and export.

    A document is its template with title and text put in. The template is cut at `[SEP]` into
    segments; each is stripped of white space at its ends and tokenized apart, and the
    tokenizer's separator goes between those that have tokens, so an empty title leaves none
    behind. The prompt stands directly before the first segment that is not empty. A row is the
    start token (if the tokenizer has one), the tokens and the end token; what is too long is
    cut on the right before the end token is put. An empty text gives the special tokens alone;
    as every tokenizer has an end token, no row is without a real token.

    `queries` and `documents` work eagerly, in `tf.data` and in other functions that are traced.

    Args:
        tokenizer: Gives the token ids.
        text_config: Template, prompts, lengths and buckets.

    Raises:
        ConfigError: a bucket is not a positive integer.
    """

    def __init__(self, tokenizer: Tokenizer, text_config: TextConfig) -> None:
        super().__init__(name="text_preprocessor")
        for bucket in text_config.buckets:
            if not isinstance(bucket, int) or bucket < 1:
                raise ConfigError(f"`buckets` must be positive integers. Received: {bucket!r}")
        self.tokenizer = tokenizer
        self.text_config = text_config
        # Traced once. Not decorators: a decorated method holds its object weakly, so that
        # `TextPreprocessor.load(directory).queries(texts)` would fail.
        self._queries = tf.function(self._encode_queries, input_signature=[_STRINGS])
        self._documents = tf.function(self._encode_documents, input_signature=[_STRINGS] * 2)

    def queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what a query tower takes.

        Args:
            texts: Queries, shape (B,), string.

        Returns:
            Token ids and padding mask (1 = real token), each shape (B, L), int32; L is the
            smallest bucket that holds the longest row, at most the longest query.
        """
        return self._queries(tf.convert_to_tensor(texts, tf.string))

    def documents(self, titles: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what a document tower takes.

        Args:
            titles: Titles, which may be empty, shape (B,), string.
            texts: Texts, shape (B,), string.

        Returns:
            As for `queries`; L is at most the longest document.
        """
        return self._documents(
            tf.convert_to_tensor(titles, tf.string), tf.convert_to_tensor(texts, tf.string)
        )

    def prompt_lengths(self) -> tuple[int, int]:
        """Returns how many tokens stand before a query, and before a document, with a prompt.

        The start token counts; without a prompt the number is 0.
        """
        config = self.text_config
        start = int(self.tokenizer.start_id is not None)
        lengths = []
        for prompt in (config.query_prompt, config.document_prompt):
            tokens = self.tokenizer.tokenize(tf.constant([prompt.rstrip()]))
            lengths.append(int(tokens.row_lengths()[0]) + start if prompt else 0)
        return lengths[0], lengths[1]

    def save(self, directory: str | Path) -> None:
        """Writes the tokenizer and `preprocessor.json` into a directory, which may exist."""
        self.tokenizer.save_assets(directory)
        path = Path(directory) / PREPROCESSOR_FILE
        path.write_text(self._description() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
            ConfigError: a file is missing or is not what `save` writes.
        """
        path = Path(directory) / PREPROCESSOR_FILE
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            value["buckets"] = tuple(value["buckets"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: must be written by TextPreprocessor.save."
                f" Received: {type(error).__name__} ({error})"
            ) from error
        return cls(load_tokenizer(directory), from_mapping(TextConfig, value, str(path)))

    def fingerprint_bytes(self) -> bytes:
        """Returns bytes that are equal exactly when two preprocessors are: for hashing."""
        return self._description().encode() + b"\n" + self.tokenizer.fingerprint_bytes()

    def _description(self) -> str:
        value = dataclasses.asdict(self.text_config)
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)

    def _encode_queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tokens = self._join([texts], self.text_config.query_prompt)
        return self._pack(tokens, self.text_config.query_max_length_tokens)

    def _encode_documents(self, titles: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        segments = [
            _format(segment, {"{title}": titles, "{text}": texts})
            for segment in self.text_config.document_template.split(SEPARATOR)
        ]
        tokens = self._join(segments, self.text_config.document_prompt)
        return self._pack(tokens, self.text_config.document_max_length_tokens)

    def _join(self, segments: list[tf.Tensor], prompt: str) -> tf.RaggedTensor:
        """Returns the tokens of the segments with separators between, without start or end."""
        rows = tf.shape(segments[0])[0]
        prompted = tf.zeros_like(segments[0], tf.bool)
        texts = []
        for number, segment in enumerate(segments, start=1):
            segment = tf.strings.strip(segment)
            if prompt:
                here = ((segment != "") | (number == len(segments))) & ~prompted
                prompted |= here
                segment = tf.where(here, tf.strings.join([prompt, segment]), segment)
            texts.append(segment)
        # One call for all segments: the graph of a tokenizer is large.
        tokens = self.tokenizer.tokenize(tf.concat(texts, 0))
        joined = tokens[:rows]
        for number in range(1, len(segments)):
            segment = tokens[number * rows : (number + 1) * rows]
            both = (joined.row_lengths() > 0) & (segment.row_lengths() > 0)
            separators = tf.RaggedTensor.from_row_lengths(
                tf.fill([tf.math.count_nonzero(both)], self.tokenizer.separator_id),
                tf.cast(both, tf.int64),
                validate=False,
            )
            joined = tf.concat([joined, separators, segment], axis=1)
        return joined

    def _truncate(self, tokens: tf.RaggedTensor, limit: int) -> tf.RaggedTensor:
        """Cuts rows to `limit` tokens, and to one less where a separator would come last."""
        kept = tokens[:, :limit]
        last = kept[:, -1:]
        stray = (tokens.row_lengths() > limit) & tf.reduce_all(
            last == self.tokenizer.separator_id, axis=1
        )
        lengths = kept.row_lengths() - tf.cast(stray, tf.int64)
        return tf.RaggedTensor.from_tensor(kept.to_tensor(), lengths)

    def _pack(self, tokens: tf.RaggedTensor, limit: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and padding mask, (B, L) int32, with special tokens."""
        special = 1 + (self.tokenizer.start_id is not None)
        tokens = self._truncate(tokens, limit - special)
        rows = tokens.nrows()
        parts = [tokens, tf.fill([rows, 1], self.tokenizer.end_id)]
        if self.tokenizer.start_id is not None:
            parts.insert(0, tf.fill([rows, 1], self.tokenizer.start_id))
        tokens = tf.concat(parts, axis=1)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        buckets = tf.constant(
            [*(b for b in self.text_config.buckets if b < limit), limit], tf.int32
        )
        longest = tf.reduce_max(tf.concat([lengths, [0]], 0))
        length = buckets[tf.searchsorted(buckets, longest[None])[0]]
        token_ids = tokens.to_tensor(self.tokenizer.pad_id)
        token_ids = tf.pad(
            token_ids,
            [[0, 0], [0, length - tf.shape(token_ids)[1]]],
            constant_values=self.tokenizer.pad_id,
        )
        return token_ids, tf.sequence_mask(lengths, length, tf.int32)


def _format(template: str, values: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the template with the values in place of their names, shape (B,), string."""
    rows = tf.shape(next(iter(values.values())))
    parts = [
        values[part] if part in values else tf.fill(rows, part)
        for part in re.split("(" + "|".join(map(re.escape, values)) + ")", template)
        if part
    ]
    return tf.strings.join(parts) if parts else tf.fill(rows, "")
