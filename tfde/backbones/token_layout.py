"""Where the real tokens of a padded batch stand, and the way there and back."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfde.backbones.portable_ops import writes_portable_ops


def token_layout(padding_mask: tf.Tensor, num_heads: int) -> TokenLayout | PaddedLayout:
    """Returns the layout for the graph at hand; the arguments are those of `TokenLayout`.

    XLA compiles for fixed shapes, and other engines want attention as everybody writes it: for
    both padding stays among the tokens.
    """
    in_xla = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    kind = PaddedLayout if in_xla or writes_portable_ops() else TokenLayout
    return kind(padding_mask, num_heads)


class PaddedLayout:
    """As `TokenLayout`, with padding among the tokens: N is B * L.

    Args:
        padding_mask: (B, L) int32, 1 = real token.
        num_heads: A.
    """

    def __init__(self, padding_mask: tf.Tensor, num_heads: int) -> None:
        self._mask = padding_mask
        self._num_heads = num_heads

    def pack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns all tokens, (N, H), of a padded batch (B, L, H)."""
        return tf.reshape(x, (-1, x.shape[-1]))

    def unpack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the padded batch, (B, L, H), of tokens (N, H); padding is zeros."""
        return self._batch(x, [x.shape[-1]]) * tf.cast(self._mask, x.dtype)[:, :, None]

    def split_heads(self, qkv: tf.Tensor) -> list[tf.Tensor]:
        """Returns query, key and value, (B, A, L, d) each, of the fused product (N, 3*A*d)."""
        sizes = [self._num_heads, qkv.shape[-1] // (3 * self._num_heads)]
        parts = tf.split(qkv, 3, axis=-1)
        return [tf.transpose(self._batch(part, sizes), (0, 2, 1, 3)) for part in parts]

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the tokens, (N, A*d), of attention's output (B, A, L, d)."""
        return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (-1, self._num_heads * x.shape[-1]))

    def _batch(self, x: tf.Tensor, sizes: list[int]) -> tf.Tensor:
        shape = tf.shape(self._mask)
        return tf.reshape(x, [shape[0], shape[1], *sizes])


class TokenLayout:
    """Between a padded batch of B texts, L long, and its N real tokens side by side.

    Matrix products, norms and dropout work on the real tokens alone; only attention needs texts
    apart. The way to attention's layout and back are gathers, whose gradients are gathers too:
    what TensorFlow derives by itself would scatter, which is slower by far on a CPU.

    Args:
        padding_mask: (B, L) int32, 1 = real token, anywhere in a row.
        num_heads: A.

    Source: derived here; others leave padding out in the same way (Zeng et al. 2022, "Boosting
        Distributed Training Performance of the Unpadded BERT Model").
    """

    def __init__(self, padding_mask: tf.Tensor, num_heads: int) -> None:
        self._num_heads = num_heads
        self._shape = tf.shape(padding_mask)
        batch, length = self._shape[0], self._shape[1]
        # The first place counts always: a batch of nothing but padding still has a token to gather.
        first = tf.range(batch * length) == 0
        self._is_real = (tf.reshape(padding_mask, (-1,)) > 0) | first
        # Of each real token its place in the batch, (N,); of each place the number of its token,
        # (B*L,). Padding has that of the token before it: something that can be gathered.
        self._places = tf.cast(tf.where(self._is_real)[:, 0], tf.int32)
        self._numbers = tf.maximum(tf.cumsum(tf.cast(self._is_real, tf.int32)) - 1, 0)
        # Of each head of each real token its place in (B, A, L), (N, A), and the way back.
        heads = tf.range(num_heads)
        text, place = self._places // length, self._places % length
        self._head_places = (text[:, None] * num_heads + heads) * length + place[:, None]
        numbers = tf.reshape(self._numbers, (batch, 1, length)) * num_heads
        self._head_numbers = numbers + heads[:, None]
        # The same for query, key and value, (N, 3, A) in (3, B, A, L).
        thirds = tf.range(3)[:, None]
        size = batch * length * num_heads
        self._third_places = self._head_places[:, None, :] + thirds * size
        numbers = tf.reshape(self._numbers, (1, batch, 1, length)) * 3 + thirds[:, None, None]
        self._third_numbers = numbers * num_heads + heads[:, None]

    def pack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the real tokens, (N, H), of a padded batch (B, L, H)."""
        return _linear(self._take, self._spread)(x)

    def unpack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the padded batch, (B, L, H), of real tokens (N, H); padding is zeros."""
        return _linear(self._spread, self._take)(x)

    def split_heads(self, qkv: tf.Tensor) -> list[tf.Tensor]:
        """Returns query, key and value, (B, A, L, d) each, of the fused product (N, 3*A*d).

        At padding they repeat some real token. Attention gives padded keys no weight and nobody
        reads padded queries, so their gradients are zeros, and nothing of them is gathered back.
        """
        width = qkv.shape[-1]
        dim = width // (3 * self._num_heads)

        def forward(qkv: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.reshape(qkv, (-1, dim)), self._third_numbers)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            found = tf.gather(tf.reshape(upstream, (-1, dim)), self._third_places)
            return tf.reshape(found, (-1, width))

        return tf.unstack(_linear(forward, backward)(qkv))

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the real tokens, (N, A*d), of attention's output (B, A, L, d)."""
        dim = x.shape[-1]
        width = self._num_heads * dim

        def forward(x: tf.Tensor) -> tf.Tensor:
            found = tf.gather(tf.reshape(x, (-1, dim)), self._head_places)
            return tf.reshape(found, (-1, width))

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            found = tf.gather(tf.reshape(upstream, (-1, dim)), self._head_numbers)
            real = tf.reshape(self._is_real, (self._shape[0], 1, self._shape[1], 1))
            return found * tf.cast(real, found.dtype)

        return _linear(forward, backward)(x)

    def _take(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(x, (-1, x.shape[-1])), self._places)

    def _spread(self, x: tf.Tensor) -> tf.Tensor:
        found = tf.gather(x, self._numbers)
        found *= tf.cast(self._is_real, found.dtype)[:, None]
        return tf.reshape(found, (self._shape[0], self._shape[1], x.shape[-1]))


def _linear(
    forward: Callable[[tf.Tensor], tf.Tensor], backward: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns `forward` with `backward` as its gradient."""

    @tf.custom_gradient
    def function(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return forward(x), backward

    return function
