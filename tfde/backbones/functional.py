"""The computations that the Transformer blocks share, on plain tensors.

Tokens are flat, (B*L, H), in everything but attention: one large matrix product is faster than a
batch of small ones, and a later release can drop the padding tokens here. Normalisation and
softmax are computed in float32 whatever the compute dtype.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import tensorflow as tf

ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
}

# Finite, so that a row without real tokens attends evenly instead of giving NaN.
MASKED = -1e9


def check_activation(name: str) -> str:
    """Returns `name` if it is one of `ACTIVATIONS`.

    Raises:
        ValueError: it is not.
    """
    if name not in ACTIVATIONS:
        raise ValueError(
            f"`activation` must be one of {', '.join(ACTIVATIONS)}. Received: activation={name!r}"
        )
    return name


def seed_stream(seed: int | None) -> Iterator[int | None]:
    """Yields seeds that follow from `seed`; `None` for ever (Keras's global seed) if it is None."""
    generator = random.Random(seed)
    while True:
        yield None if seed is None else generator.randrange(2**31)


def shape_of(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the shape of `x`: an int where it is static, else a scalar tensor."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises the last axis to mean 0 and variance 1; the result has the dtype of `x`."""
    y = tf.cast(x, tf.float32)
    y -= tf.reduce_mean(y, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
    gamma, beta = tf.cast(gamma, tf.float32), tf.cast(beta, tf.float32)
    return tf.cast(y * (scale * gamma) + beta, x.dtype)


def rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Divides by the root mean square of the last axis; the result has the dtype of `x`."""
    y = tf.cast(x, tf.float32)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
    return tf.cast(y * (scale * tf.cast(gamma, tf.float32)), x.dtype)


def mask_bias(padding_mask: tf.Tensor) -> tf.Tensor:
    """Returns what is added to attention scores for a mask (B, L): (B, 1, 1, L) float32."""
    return (1.0 - tf.cast(padding_mask, tf.float32))[:, None, None, :] * MASKED


def split_heads(qkv: tf.Tensor, bias: tf.Tensor, num_heads: int) -> list[tf.Tensor]:
    """Returns query, key and value, (B, A, L, d) each.

    Args:
        qkv: The fused product, (B*L, 3*A*d).
        bias: The attention bias, (B, ..., L), which knows B and L.
        num_heads: A.
    """
    shape = shape_of(bias)
    key_value_dim = qkv.shape[-1] // (3 * num_heads)
    qkv = tf.reshape(qkv, (shape[0], shape[-1], 3, num_heads, key_value_dim))
    return tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))


def merge_heads(x: tf.Tensor) -> tf.Tensor:
    """Returns (B, A, L, d) as flat tokens (B*L, A*d)."""
    _, heads, _, dim = x.shape
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (-1, heads * dim))


def attention_weights(query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns softmax(Q K^T + bias), (B, A, L, L), softmax in float32, in the dtype of `query`.

    Args:
        query: (B, A, L, d), already scaled where the model scales it.
        key: (B, A, L, d).
        bias: Float32, broadcast to (B, A, L, L).
    """
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
    return tf.cast(tf.nn.softmax(scores + bias), query.dtype)
