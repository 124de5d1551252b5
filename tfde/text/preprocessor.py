"""From queries, titles and texts to padded batches of token ids."""

from __future__ import annotations

import tensorflow as tf

from tfde.config.model import TextConfig
from tfde.errors import require
from tfde.text.batch_preprocessor import BatchPreprocessor, fill_template, side_by_side
from tfde.text.tokenizer import Tokenizer, traced

SEPARATOR = "[SEP]"


class TextPreprocessor(BatchPreprocessor):
    """Formats, tokenizes, truncates and pads, alike in training, encoding and export.

    A document is its template with title, text and perhaps context put in. The template is cut at
    `[SEP]` into segments; each is tokenized apart, and the tokenizer's separator goes between
    those that have tokens, so an empty title leaves none behind. The prompt stands directly before
    the first segment that is not empty. A row is the start token (if the tokenizer has one), the
    mark (if there is one), the tokens and the end token; what is too long is cut on the right
    before the end token is put. An empty text gives the special tokens alone; as every tokenizer
    has an end token, no row is without a real token.

    `queries` and `documents` work eagerly, in `tf.data` and in other functions that are traced.

    Args:
        tokenizer: Gives the token ids.
        text_config: Template, prompts, marks, lengths and buckets.

    Attributes:
        query_mark_id: The mark's token id, if queries have one.
        query_fill_id: The token id that fills queries, if one does.

    Raises:
        ConfigError: a bucket is not a positive integer; a mark is no token of the vocabulary.
    """

    config_class = TextConfig

    def __init__(self, tokenizer: Tokenizer, text_config: TextConfig) -> None:
        text_config = text_config.filled()
        super().__init__(tokenizer, text_config, name="text_preprocessor")
        self.query_mark_id = self._id_of("query_mark")
        self._document_mark = self._id_of("document_mark")
        self.query_fill_id = self._id_of("query_fill")
        content = self.fingerprint_bytes()
        self._queries = traced(self._encode_queries, strings=1, content=content)
        strings = len(text_config.document_fields)
        self._documents = traced(self._encode_documents, strings=strings, content=content)

    def queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what a query tower takes.

        Args:
            texts: Queries, shape (B,), string.

        Returns:
            Token ids and padding mask (1 = real token), each shape (B, L), int32; L is the
            smallest bucket that holds the longest row, at most the longest query. With a
            `query_fill`, L is the longest query, and what fills has 0 in the mask.
        """
        token_ids, padding_mask, _ = self._queries(tf.convert_to_tensor(texts, tf.string))
        return token_ids, padding_mask

    def documents(
        self, titles: tf.Tensor, texts: tf.Tensor, contexts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what a document tower takes.

        Args:
            titles: Titles, which may be empty, shape (B,), string.
            texts: Texts, shape (B,), string.
            contexts: Contexts, which may be empty, shape (B,), string; `None` where the template
                has none.

        Returns:
            As for `queries`; L is at most the longest document.

        Raises:
            ConfigError: contexts are missing, or the template has none.
        """
        token_ids, padding_mask, _ = self.measured_documents(titles, texts, contexts)
        return token_ids, padding_mask

    def measured_queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what `queries` returns, and how long the queries are.

        Args:
            texts: As for `queries`.

        Returns:
            Token ids, padding mask, and for each query (B, 2) int64: how many tokens it has
            without start and end (a mark counts), and how many of these were cut off.
        """
        return self._queries(tf.convert_to_tensor(texts, tf.string))

    def measured_documents(
        self, titles: tf.Tensor, texts: tf.Tensor, contexts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what `documents` returns, and how long the documents are.

        Args:
            titles: As for `documents`.
            texts: As for `documents`.
            contexts: As for `documents`.

        Returns:
            Token ids, padding mask, and the lengths as for `measured_queries`, (B, 2) int64.

        Raises:
            ConfigError: as `documents`.
        """
        columns = [titles, texts, *([] if contexts is None else [contexts])]
        fields = self.text_config.document_fields
        if len(columns) != len(fields):
            template = self.text_config.document_template
            rule = f"given where the template has {{context}}, and only there: {template!r}"
            require(False, "contexts", rule, contexts)
        return self._documents(*(tf.convert_to_tensor(x, tf.string) for x in columns))

    def prompt_lengths(self) -> tuple[int, int]:
        """Returns how many tokens stand before a query, and before a document, with a prompt.

        The start token counts; without a prompt the number is 0.
        """
        before, text = self.frame_lengths(), self.text_config

        def length(prompt: str, before: int) -> int:
            return before + self.tokenizer.length(prompt.rstrip()) if prompt else 0

        return length(text.query_prompt, before[0]), length(text.document_prompt, before[1])

    def frame_lengths(self) -> tuple[int, int]:
        """Returns how many special tokens a query, and a document, begins with."""
        start = int(self.tokenizer.start_id is not None)
        return start + bool(self.text_config.query_mark), start + bool(
            self.text_config.document_mark
        )

    def _encode_queries(self, texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tokens = _marked(self._join([texts], self.text_config.query_prompt), self.query_mark_id)
        limit = self.text_config.query_max_length_tokens
        return self._pack_up_to(limit, tokens, self.query_fill_id)

    def _encode_documents(self, *columns: tf.Tensor) -> tuple[tf.Tensor, ...]:
        fields = dict(zip(self.text_config.document_fields, columns, strict=True))
        segments = [
            fill_template(segment, fields)
            for segment in self.text_config.document_template.split(SEPARATOR)
        ]
        tokens = _marked(
            self._join(segments, self.text_config.document_prompt), self._document_mark
        )
        return self._pack_up_to(self.text_config.document_max_length_tokens, tokens)

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
        count = len(segments)
        if count == 1:
            return tokens
        lengths = tf.reshape(tokens.row_lengths(), [count, rows])
        separated = (lengths > 0) & (tf.cumsum(lengths, exclusive=True) > 0)
        separators = tf.fill([tf.math.count_nonzero(separated)], self.tokenizer.separator_id)
        groups = tf.RaggedTensor.from_row_lengths(
            tf.concat([tokens.values, separators], 0),
            tf.concat([tokens.row_lengths(), tf.reshape(tf.cast(separated, tf.int64), [-1])], 0),
            validate=False,
        )
        # Each segment's tokens come after its separator.
        order = [number for segment in range(count) for number in (count + segment, segment)]
        return side_by_side(groups, order)

    def _id_of(self, field: str) -> int | None:
        token = getattr(self.text_config, field)
        if not token:
            return None
        found = self.tokenizer.token_id(token)
        require(found is not None, field, "a token of the vocabulary", token)
        return found

    def _pack_up_to(
        self, limit: int, tokens: tf.RaggedTensor, fill_id: int | None = None
    ) -> tuple[tf.Tensor, ...]:
        """Returns token ids and padding mask, (B, L) int32, with special tokens, and lengths.

        What is too long loses its last tokens, and the separator that would come last then.
        """
        room = limit - 1 - (self.tokenizer.start_id is not None)
        lengths = tokens.row_lengths()
        too_long = lengths > room
        lasts = tf.where(too_long, tokens.row_starts() + room - 1, 0)
        values = tf.concat([tokens.values, [self.tokenizer.pad_id]], 0)
        stray = too_long & (tf.gather(values, lasts) == self.tokenizer.separator_id)
        kept = tf.minimum(lengths, room) - tf.cast(stray, tf.int64)
        return *self._pack(tokens, kept, limit, fill_id), tf.stack([lengths, lengths - kept], 1)


def _marked(tokens: tf.RaggedTensor, mark: int | None) -> tf.RaggedTensor:
    """Returns the rows with a token more before each, if there is a mark."""
    if mark is None:
        return tokens
    return tf.concat([tf.fill([tokens.nrows(), 1], tf.cast(mark, tokens.dtype)), tokens], 1)


def cut_counts(lengths: tf.Tensor, there: tf.Tensor | None = None) -> tf.Tensor:
    """Returns what `CutTexts` counts, (4,) int64: texts, those cut, their tokens, those cut off.

    Args:
        lengths: Of `measured_queries` or `measured_documents`, (B, 2) int64.
        there: Which rows count, (B,) bool; `None` counts all.
    """
    cut = lengths[:, 1] > 0
    there = tf.ones_like(cut) if there is None else there
    chosen = tf.cast(cut & there, tf.int64)
    sums = tf.reduce_sum(lengths * chosen[:, None], 0)
    return tf.stack([tf.math.count_nonzero(there), tf.reduce_sum(chosen), *tf.unstack(sums, 2)])
