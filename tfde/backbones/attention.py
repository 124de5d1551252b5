"""Scaled dot-product attention, with a gradient of few passes over the scores."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

# Finite, so that a row without real tokens attends evenly instead of giving NaN.
MASKED = -1e9


def mask_bias(padding_mask: tf.Tensor) -> tf.Tensor:
    """Returns what is added to attention scores for a mask (B, L): (B, 1, 1, L) float32."""
    return (1.0 - tf.cast(padding_mask, tf.float32))[:, None, None, :] * MASKED


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor,
    *,
    training: bool,
    dropout: float = 0.0,
    keep: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns softmax(Q K^T + bias) V, (B, A, L, d), in the dtype of `value`.

    The softmax is computed in float32. Its gradient needs the weights P alone: with O the result,
    dP = dO V^T and dS = P * (dP - rowsum(dO * O)).

    Args:
        query: (B, A, L, d), already scaled where the model scales it.
        key: (B, A, L, d).
        value: (B, A, L, d).
        bias: Float32, broadcast to (B, A, L, L).
        training: Whether the form with a gradient of its own is wanted; the other one is what
            TensorFlow's graph rewriter replaces by fused kernels.
        dropout: Rate at which weights are dropped, where `keep` is given.
        keep: (B, A, L, L) bool, the weights that stay; `None` for all.

    Source: Vaswani et al. 2017, equation 1; the form of the gradient as in Dao et al. 2022,
        section 3.1.
    """
    if not training:
        # In bfloat16 the sum is, the softmax inside its kernel is not.
        if query.dtype == tf.float16:  # which would make -inf of it, and NaN of padding alone
            bias = tf.maximum(bias, float(tf.float16.min))
        scores = tf.matmul(query, key, transpose_b=True) + tf.cast(bias, query.dtype)
        return tf.matmul(tf.nn.softmax(scores), value)
    scale = 1.0 if keep is None else 1.0 / (1.0 - dropout)

    @tf.custom_gradient
    def attend(
        query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, ...]]]:
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        weights = tf.nn.softmax(scores + bias)
        output = tf.matmul(tf.cast(_only(keep, weights), value.dtype), value) * scale

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            overlap = tf.cast(upstream, tf.float32) * tf.cast(output, tf.float32)
            mean = tf.reduce_sum(overlap, axis=-1, keepdims=True)
            upstream *= scale
            # The largest tensors there are: computed anew, and not before they are wanted, or
            # they would be kept from the way forward.
            with tf.control_dependencies([upstream]):
                kept = weights if keep is None else tf.where(keep, weights, 0.0)
                kept = tf.cast(kept, value.dtype)
                alive = None if keep is None else tf.identity(keep)
            of_weights = tf.cast(tf.matmul(upstream, value, transpose_b=True), tf.float32)
            of_scores = weights * (_only(alive, of_weights) - mean)
            of_bias = _sum_to(of_scores, bias)
            of_scores = tf.cast(of_scores, query.dtype)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(kept, upstream, transpose_a=True),
                of_bias,
            )

        return output, gradient

    return attend(query, key, value, bias)


def _only(keep: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
    return x if keep is None else x * tf.cast(keep, x.dtype)


def _sum_to(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(x))
    return tf.reshape(tf.reduce_sum(x, axes), tf.shape(like))
