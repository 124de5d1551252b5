"""Norms and activations of the Transformer layers, on plain tensors.

Tokens are flat, (N, H), in everything but attention: one large matrix product is faster than a
batch of small ones, and padding is left out. Each function has two forms of one result. The form
for inference is the one that TensorFlow's graph rewriter knows and replaces by a single oneDNN
kernel; the form for training has a gradient of its own, of fewer passes over memory than the one
that TensorFlow derives op by op.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

from tfde.backbones.portable_ops import writes_portable_ops

# A fused layer norm costs 0.13 ms before the first token; that is what so many take op by op.
FEW_TOKENS = 128
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

_FEW: ContextVar[bool | None] = ContextVar("few_tokens", default=None)


@contextmanager
def for_tokens(*, few: bool) -> Iterator[None]:
    """Within its block graphs are traced for few tokens, or for many, and for no others."""
    token = _FEW.set(few)
    try:
        yield
    finally:
        _FEW.reset(token)


_Gradient = Callable[[tf.Tensor], tuple[tf.Tensor, ...]]


def activate(name: str, x: tf.Tensor, *, training: bool) -> tf.Tensor:
    """Returns the activation `name` of `x`, in its dtype."""
    if name == "gelu":
        if training:
            return _gelu(x)
        if writes_portable_ops():
            return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))
        return tf.nn.gelu(x, approximate=False)
    if name == "gelu_tanh":
        return tf.nn.gelu(x, approximate=True)
    return tf.nn.relu(x) if name == "relu" else tf.nn.silu(x)


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


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Within its block what Keras draws without a seed of its own follows from `seed`.

    Weights and dropout draw their seeds from Python's random state, which is as before after it,
    as are NumPy's and TensorFlow's: a model's seed is not the program's. `None` changes nothing.
    """
    before = random.getstate()
    if seed is not None:
        random.seed(seed)
    try:
        yield
    finally:
        if seed is not None:
            random.setstate(before)


def shape_of(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the shape of `x`: an int where it is static, else a scalar tensor."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, *, training: bool
) -> tf.Tensor:
    """Normalises the last axis to mean 0 and variance 1, in float32; the dtype is that of `x`.

    A graph for inference that is made where TensorFlow sees no GPU runs on none, unless oneDNN is
    off there (`TF_ENABLE_ONEDNN_OPTS=0`).

    Args:
        x: (..., H).
        gamma: (H,).
        beta: (H,).
        epsilon: Added to the variance.
        training: Whether the form for training is wanted.

    Source: Ba et al. 2016, section 3.
    """
    gamma, beta = tf.cast(gamma, tf.float32), tf.cast(beta, tf.float32)
    if training:
        return _trained_layer_norm(x, gamma, beta, epsilon)
    if writes_portable_ops():
        return _portable_layer_norm(x, gamma, beta, epsilon)
    flat = tf.reshape(x, (-1, x.shape[-1]))

    def op_by_op() -> tf.Tensor:
        return _layer_norm(flat, gamma, beta, epsilon)[0]

    def fused() -> tf.Tensor:
        return _fused_layer_norm(flat, gamma, beta, epsilon)

    few = _FEW.get()
    if tf.config.get_visible_devices("GPU"):
        few = True  # the rewriter takes the other form on GPUs too, which have no such kernel
    if few is None:
        flat = tf.cond(tf.shape(flat)[0] < FEW_TOKENS, op_by_op, fused)
    else:
        flat = op_by_op() if few else fused()
    return tf.ensure_shape(tf.reshape(flat, tf.shape(x)), x.shape)


def rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float, *, training: bool) -> tf.Tensor:
    """Divides by the root mean square of the last axis, in float32; the dtype is that of `x`.

    Source: Zhang and Sennrich 2019, section 4.
    """
    gamma = tf.cast(gamma, tf.float32)

    def normalise(x: tf.Tensor, gamma: tf.Tensor) -> tuple[tf.Tensor, _Gradient]:
        y = tf.cast(x, tf.float32)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
        normal = y * scale

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream = tf.cast(upstream, tf.float32)
            of_normal = upstream * gamma
            mean = tf.reduce_mean(of_normal * normal, axis=-1, keepdims=True)
            of_x = (of_normal - normal * mean) * scale
            return tf.cast(of_x, x.dtype), _sum_of_rows(upstream * normal)

        return tf.cast(normal * gamma, x.dtype), gradient

    return tf.custom_gradient(normalise)(x, gamma) if training else normalise(x, gamma)[0]


def _layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the layer norm, what it is before `gamma` and `beta`, and 1 / standard deviation."""
    y = tf.cast(x, tf.float32)
    y -= tf.reduce_mean(y, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
    normal = y * scale
    return tf.cast(normal * gamma + beta, x.dtype), normal, scale


def _portable_layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    # A list of axes: with a number OpenVINO knows the norm, and then fails to build it.
    y = tf.cast(x, tf.float32)
    y -= tf.reduce_mean(y, axis=[-1], keepdims=True)
    y /= tf.sqrt(tf.reduce_mean(tf.square(y), axis=[-1], keepdims=True) + epsilon)
    return tf.cast(y * gamma + beta, x.dtype)


def _fused_layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises tokens (N, H) as the channels of a batch norm.

    So, op by op, the rewriter knows a layer norm.
    """
    count = tf.shape(x)[0]
    normal, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (1, count, x.shape[-1], 1)),
        scale=tf.fill((count,), 1.0),
        offset=tf.fill((count,), 0.0),
        mean=tf.constant([], tf.float32),
        variance=tf.constant([], tf.float32),
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )
    normal = tf.reshape(normal, tf.shape(x))
    return normal * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)


def _trained_layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    @tf.custom_gradient
    def normalise(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, _Gradient]:
        y, normal, scale = _layer_norm(x, gamma, beta, epsilon)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream = tf.cast(upstream, tf.float32)
            of_normal = upstream * gamma
            mean = tf.reduce_mean(of_normal, axis=-1, keepdims=True)
            slope = tf.reduce_mean(of_normal * normal, axis=-1, keepdims=True)
            of_x = (of_normal - mean - normal * slope) * scale
            return tf.cast(of_x, x.dtype), _sum_of_rows(upstream * normal), _sum_of_rows(upstream)

        return y, gradient

    return normalise(x, gamma, beta)


@tf.custom_gradient
def _gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """The exact GELU, x Phi(x), whose derivative is Phi(x) + x phi(x)."""
    normal = 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        # Else it would be computed on the way forward, as soon as it can be, and kept.
        with tf.control_dependencies([upstream]):
            density = tf.exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        return upstream * (normal + x * density)

    return x * normal, gradient


def _sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """Returns the sum over all axes but the last, by the op that is fastest for it."""
    return tf.raw_ops.BiasAddGrad(out_backprop=x)
