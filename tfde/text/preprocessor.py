"""From queries, titles and texts to padded batches of token ids."""

from __future__ import annotations

import tensorflow as tf

from tfde.config import TextConfig
from tfde.text.batch_preprocessor import BatchPreprocessor, cut_rows, fill_template
from tfde.text.tokenizer import Tokenizer

SEPARATOR = "[SEP]"
_STRINGS = tf.TensorSpec([None], tf.string)


class TextPreprocessor(BatchPreprocessor):
    """Formats, tokenizes, truncates and pads, alike in training, encoding and export.

    A document is its template with title and text put in. The template is cut at `[SEP]` into
    segments; each is tokenized apart, and the tokenizer's separator goes between those that have
    tokens, so an empty title leaves none behind. The prompt stands directly before the first
    segment that is not empty. A row is the start token (if the tokenizer has one), the tokens and
    the end token; what is too long is cut on the right before the end token is put. An empty text
    gives the special tokens alone; as every tokenizer has an end token, no row is without a real
    token.

    `queries` and `documents` work eagerly, in `tf.data` and in other functions that are traced.

    Args:
        tokenizer: Gives the token ids.
        text_config: Template, prompts, lengths and buckets.

    Raises:
        ConfigError: a bucket is not a positive integer.
    """

    config_class = TextConfig

    def __init__(self, tokenizer: Tokenizer, text_config: TextConfig) -> None:
        super().__init__(tokenizer, text_config, name="text_preprocessor")
        # Traced once. Not decorators: a decorated method holds its object weakly, so that
        # `TextPreprocessor.load(directory).queries(texts)` would fail.
        self._queries = tf.function(
            self._encode_queries, input_signature=[_STRINGS], autograph=False
        )
        self._documents = tf.function(
            self._encode_documents, input_signature=[_STRINGS] * 2, autograph=False
        )

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

    def _encode_queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tokens = self._join([texts], self.text_config.query_prompt)
        return self._pack(tokens, self.text_config.query_max_length_tokens)

    def _encode_documents(self, titles: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        segments = [
            fill_template(segment, titles, texts)
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
        return cut_rows(kept, kept.row_lengths() - tf.cast(stray, tf.int64))

    def _pack(self, tokens: tf.RaggedTensor, limit: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and padding mask, (B, L) int32, with special tokens."""
        special = 1 + (self.tokenizer.start_id is not None)
        return self._pad(self._frame([self._truncate(tokens, limit - special)]), limit)
