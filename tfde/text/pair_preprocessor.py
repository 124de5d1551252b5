"""From pairs of texts to padded batches of one sequence a pair."""

from __future__ import annotations

import tensorflow as tf

from tfde.config.model import PairTextConfig
from tfde.text.batch_preprocessor import BatchPreprocessor, cut_rows, fill_template, side_by_side
from tfde.text.tokenizer import Tokenizer, traced


class PairPreprocessor(BatchPreprocessor):
    """Tokenizes, truncates, joins and pads pairs of texts for a cross-encoder.

    A row is the start token (if the tokenizer has one), the first text's tokens, the tokens that
    part a pair (`[SEP]` for BERT, `</s></s>` for RoBERTa), the second text's tokens and the end
    token. Texts are taken as they stand; an empty one has no tokens.

    A pair that is too long loses tokens on the right of its longer text until both are equally
    long, then of both: `longest_first` as Hugging Face's fast tokenizers do it. Where the room
    for both is odd, the longer text (the second, if they are equal) has one token more.

    `pairs` and `documents` work eagerly, in `tf.data` and in other functions that are traced.

    Args:
        tokenizer: Gives the token ids.
        text_config: Length, segments, template and buckets.

    Raises:
        ConfigError: a bucket is not a positive integer.
    """

    config_class = PairTextConfig

    def __init__(self, tokenizer: Tokenizer, text_config: PairTextConfig) -> None:
        super().__init__(tokenizer, text_config, name="pair_preprocessor")
        self._pairs = traced(self._encode_pairs, strings=2, content=self.fingerprint_bytes())

    def pairs(self, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what a cross-encoder's scorer takes.

        Args:
            first: First texts, such as queries, shape (B,), string.
            second: Second texts, such as documents, shape (B,), string.

        Returns:
            Token ids, segment ids (1 = second text and the end token, if there are two segments)
            and padding mask (1 = real token), each shape (B, L), int32; L is the smallest bucket
            that holds the longest row, at most the longest sequence.
        """
        return self.pairs_and_counts(first, second)[0]

    def pairs_and_counts(
        self, first: tf.Tensor, second: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """Returns what `pairs` does, and how many tokens of each text are in it, (B,) int32 each.

        Those of the first text stand after the start token, if there is one; those of the second
        after the ones that part the texts.

        Args:
            first: As for `pairs`.
            second: As for `pairs`.
        """
        return self._pairs(
            tf.convert_to_tensor(first, tf.string), tf.convert_to_tensor(second, tf.string)
        )

    def documents(self, titles: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        """Returns documents as second texts, shape (B,), string: the template, filled.

        Args:
            titles: Titles, which may be empty, shape (B,), string.
            texts: Texts, shape (B,), string.
        """
        fields = {
            "title": tf.convert_to_tensor(titles, tf.string),
            "text": tf.convert_to_tensor(texts, tf.string),
        }
        return fill_template(self.text_config.document_template, fields)

    def _encode_pairs(
        self, first: tf.Tensor, second: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        limit = self.text_config.max_length_tokens
        separators = self.tokenizer.pair_separator_ids
        starts = int(self.tokenizer.start_id is not None)
        rows = tf.shape(first)[0]
        # One call for both texts: the graph of a tokenizer is large.
        tokens = self.tokenizer.tokenize(tf.concat([first, second], 0))
        of_texts = tf.reshape(tokens.row_lengths(), [2, rows])
        room = limit - starts - len(separators) - 1
        lengths = _longest_first(of_texts[0], of_texts[1], room)
        kept = cut_rows(tokens, tf.concat(lengths, 0))
        groups = tf.RaggedTensor.from_row_lengths(
            tf.concat([kept.values, tf.tile(separators, rows[None])], 0),
            tf.concat([*lengths, tf.fill(rows[None], tf.constant(len(separators), tf.int64))], 0),
            validate=False,
        )
        whole = side_by_side(groups, [0, 2, 1])
        token_ids, padding_mask = self._pack(whole, whole.row_lengths(), limit)
        counts = tf.cast(lengths[0], tf.int32), tf.cast(lengths[1], tf.int32)
        if self.text_config.num_segments == 1:
            return (token_ids, tf.zeros_like(token_ids), padding_mask), counts
        before = lengths[0] + starts + len(separators)
        in_first = tf.sequence_mask(before, tf.shape(token_ids)[1], tf.int32)
        return (token_ids, padding_mask - in_first, padding_mask), counts


def _longest_first(first: tf.Tensor, second: tf.Tensor, limit: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many tokens each text keeps, (B,) int64, so that both together have `limit`."""
    shorter, longer = tf.minimum(first, second), tf.maximum(first, second)
    half = limit // 2
    fits = shorter <= half  # then only the longer one gives way
    kept_shorter = tf.where(fits, shorter, half)
    kept_longer = tf.where(fits, tf.minimum(longer, limit - shorter), limit - half)
    first_is_longer = first > second
    return (
        tf.where(first_is_longer, kept_longer, kept_shorter),
        tf.where(first_is_longer, kept_shorter, kept_longer),
    )
