"""Attention between two texts: of a cross-encoder, which has it, and of encoders apart."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfde.backbones.attention import MASKED
from tfde.backbones.transformer import EncoderStates
from tfde.matching.pair_states import PairStates, TextTokens


class CrossMaps(NamedTuple):
    """Attention of each text's tokens over the other's, in one layer.

    Attributes:
        to_second: (B, A, X, Y) float32; each real row sums to 1 over the real tokens of Y.
        to_first: (B, A, Y, X) float32.
    """

    to_second: tf.Tensor
    to_first: tf.Tensor


def attention_map(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the softmax of scores (B, ..., N) over the places that count, float32.

    Args:
        scores: Scaled products of queries and keys.
        mask: (B, N), 1 = a place that counts.
    """
    dims = [tf.shape(mask)[0], *(1 for _ in scores.shape[1:-1]), tf.shape(mask)[1]]
    bias = (1.0 - tf.cast(tf.reshape(mask, dims), tf.float32)) * MASKED
    return tf.nn.softmax(tf.cast(scores, tf.float32) + bias)


def cross_maps(states: PairStates, layer: int, counts: tuple[tf.Tensor, tf.Tensor]) -> CrossMaps:
    """Returns the attention between the texts: what there is, or would be of encoders apart.

    Where one sequence holds both texts these are two blocks of its attention; of encoders apart
    they are made of their queries and keys.

    Args:
        states: What was computed.
        layer: Number of the layer.
        counts: How many tokens of the first and the second texts are compared, (B,) each.

    Source: Li et al. 2021, equations 4 to 6. Relative positions, where an encoder of both texts
        has them, belong to its scores and stay.
    """
    x, y = (
        _Heads(side, layer, places, count)
        for side, places, count in zip(states.sides(), states.tokens, counts, strict=True)
    )
    bias = states.first["bias"]
    # Of encoders apart there is none; of padding alone it is masked anyway.
    if states.second is not None or bias.shape[2] == 1:
        return CrossMaps(_softmax(x, y), _softmax(y, x))
    bias = tf.broadcast_to(bias, tf.concat([tf.shape(x.where)[:1], tf.shape(bias)[1:]], 0))
    return CrossMaps(
        _softmax(x, y, _block(bias, x.where, y.where)),
        _softmax(y, x, _block(bias, y.where, x.where)),
    )


class _Heads:
    """Queries and keys of a text's tokens, (B, A, N, d), and which of the N there are."""

    def __init__(
        self, states: EncoderStates, layer: int, places: TextTokens, counts: tf.Tensor
    ) -> None:
        longest = tf.maximum(tf.reduce_max(counts), 1)
        self.where = places.places(longest, tf.shape(states["queries"][layer])[2])
        self.mask = tf.sequence_mask(counts, longest, tf.int32)
        self.queries, self.keys = (
            tf.gather(tf.transpose(states[name][layer], (0, 2, 1, 3)), self.where, batch_dims=1)
            for name in ("queries", "keys")
        )


def _softmax(rows: _Heads, columns: _Heads, bias: tf.Tensor | None = None) -> tf.Tensor:
    scores = tf.einsum("bxad,byad->baxy", rows.queries, columns.keys)
    scores = tf.cast(scores, tf.float32)
    return attention_map(scores if bias is None else scores + bias, columns.mask)


def _block(bias: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Returns (B, A, X, Y) of a bias (B, A, L, L)."""
    by_row = tf.gather(tf.transpose(bias, (0, 2, 3, 1)), rows, batch_dims=1)
    columns = tf.tile(columns[:, None], (1, tf.shape(rows)[1], 1))
    return tf.transpose(tf.gather(by_row, columns, batch_dims=2), (0, 3, 1, 2))
