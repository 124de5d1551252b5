"""Byte-pair encoding of words, all words of a batch at once, as graph ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError, shorten
from tfde.text.graph_function import graph_function

_NONE = tf.int32.max  # the rank of a pair that is not merged
_STRINGS = tf.TensorSpec([None], tf.string)


def byte_characters() -> list[str]:
    """Returns the character under which a byte-level vocabulary writes each of the 256 bytes.

    Source: the table of GPT-2's encoder: what prints stands for itself, the others, in their
    order, are U+0100 and following.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


class BytePairMerges(tf.Module):
    """Merges the bytes of words into tokens: always the pair of lowest rank, leftmost first.

    Words of a batch are merged in step. In a step each word merges all occurrences of its
    lowest pair; this equals one after another when no merge can make a pair of lower rank than
    its own, which is so for learned merges; otherwise only the leftmost.

    Args:
        ids: Token -> id.
        merges: Pairs of tokens by rank.
        unknown_id: Stands for a byte that no token is; `None`: the byte is left out.

    Raises:
        ConfigError: a merge is of tokens, or gives one, that are not in `ids`.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        merges: Sequence[tuple[str, str]],
        unknown_id: int | None,
    ) -> None:
        super().__init__(name="byte_pair_merges")
        missing = -1 if unknown_id is None else unknown_id
        self._byte_ids = tf.constant([ids.get(c, missing) for c in byte_characters()], tf.int32)
        self._drops_bytes = bool(np.any(self._byte_ids.numpy() < 0))
        for rank, (left, right) in enumerate(merges):
            for token in (left, right, left + right):
                if token not in ids:
                    raise ConfigError(
                        f"`merges` must be of tokens in the vocabulary. Received: {shorten(token)}"
                        f" in merge {rank} ({shorten(f'{left} {right}')})"
                    )
        self._base = max(ids.values(), default=0) + 1
        # A pair given twice has its last rank, as in a dict.
        ranks = {
            ids[left] * self._base + ids[right]: rank for rank, (left, right) in enumerate(merges)
        }
        keys = sorted(ranks)
        # One more, greater than all, so that each search ends at an entry.
        self._keys = tf.constant([*keys, np.iinfo(np.int64).max], tf.int64)
        self._ranks = tf.constant([*(ranks[key] for key in keys), _NONE], tf.int32)
        self._merged = tf.constant([*(ids[a + b] for a, b in merges), 0], tf.int32)
        self._all_at_once = _never_lower(merges)
        # One graph: its loop would run as Python where the caller is not traced.
        self._merge_words = graph_function(self._merge, input_signature=[_STRINGS])

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the tokens of words.

        Args:
            words: Bytes, shape (W,), string.

        Returns:
            Token ids, shape (W, None), int32.
        """
        return self._merge_words(words)

    def _merge(self, words: tf.Tensor) -> tf.RaggedTensor:
        # The ids, and which word each is of: both in order.
        ids = tf.gather(
            self._byte_ids,
            tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32),
        )
        count = tf.size(words)
        owners = tf.repeat(tf.range(count), tf.strings.length(words, "BYTE"))
        if self._drops_bytes:
            kept = ids >= 0
            ids, owners = ids[kept], owners[kept]
        none = tf.zeros([0], tf.int32)
        vector = tf.TensorShape([None])
        _, _, ids, owners = tf.while_loop(
            lambda ids, owners, done_ids, done_owners: tf.size(ids) > 0,
            self._step,
            (ids, owners, none, none),
            shape_invariants=(vector,) * 4,
        )
        order = tf.argsort(owners, stable=True)
        return tf.RaggedTensor.from_value_rowids(
            tf.gather(ids, order),
            tf.cast(tf.gather(owners, order), tf.int64),
            nrows=tf.cast(count, tf.int64),
            validate=False,
        )

    def _step(
        self, ids: tf.Tensor, owners: tf.Tensor, done_ids: tf.Tensor, done_owners: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Moves the words without a pair to merge to what is done, and merges once in the rest."""
        same = tf.concat([owners[1:] == owners[:-1], [False]], 0)
        ranks = self._rank(ids, tf.concat([ids[1:], [0]], 0), same)
        starts = tf.concat([[True], ~same[:-1]], 0)
        word = tf.cumsum(tf.cast(starts, tf.int32)) - 1
        lowest = tf.gather(tf.math.segment_min(ranks, word), word)
        goes_on = lowest < _NONE
        done_ids = tf.concat([done_ids, ids[~goes_on]], 0)
        done_owners = tf.concat([done_owners, owners[~goes_on]], 0)
        merge = goes_on & (ranks == lowest)
        merge = _first_of_each(merge, word) if not self._all_at_once else _every_other(merge)
        ids = tf.where(merge, tf.gather(self._merged, tf.where(merge, ranks, 0)), ids)
        kept = goes_on & ~tf.concat([[False], merge[:-1]], 0)
        return ids[kept], owners[kept], done_ids, done_owners

    def _rank(self, left: tf.Tensor, right: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        keys = tf.cast(left, tf.int64) * self._base + tf.cast(right, tf.int64)
        place = tf.searchsorted(self._keys, keys)
        found = counts & (tf.gather(self._keys, place) == keys)
        return tf.where(found, tf.gather(self._ranks, place), _NONE)


def _every_other(flags: tf.Tensor) -> tf.Tensor:
    """Keeps the first, third ... of neighbouring flags: of "aaa" the first two are merged."""

    def thinned() -> tf.Tensor:
        size = tf.size(flags)
        gaps = tf.concat([[-1], tf.cast(tf.where(~flags)[:, 0], tf.int32)], 0)
        before = tf.gather(gaps, tf.cumsum(tf.cast(~flags, tf.int32)))
        return flags & ((tf.range(size) - before) % 2 == 1)

    return tf.cond(tf.reduce_any(flags[1:] & flags[:-1]), thinned, lambda: flags)


def _first_of_each(flags: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
    """Keeps the first flag of each word."""
    number = tf.range(tf.size(flags))
    first = tf.math.segment_min(tf.where(flags, number, _NONE), word)
    return flags & (tf.gather(first, word) == number)


def _never_lower(merges: Sequence[tuple[str, str]]) -> bool:
    """Returns whether every merge has a higher rank than all that make its two tokens."""
    made: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        made[left + right] = rank
    return all(made.get(token, -1) < rank for rank, pair in enumerate(merges) for token in pair)
