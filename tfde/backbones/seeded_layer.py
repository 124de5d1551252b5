"""What the layers of every backbone have: seeds, dropout, and weights under their own names."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.functional import seed_stream
from tfde.backbones.portable_ops import writes_portable_ops
from tfde.config.lora import LoraConfig
from tfde.errors import ConfigError

_ALIGNMENT = 64
NO_QUANTIZE = (
    "`quantize` is not there for towers: `tfde export --precision int8` (`int8_weights=True`)"
    ' stores their matrices in 8 bits, dtype="bfloat16" holds them in 16.'
)
_ZERO_WEIGHTS = contextvars.ContextVar("zero_weights", default=False)
_DESCRIBED_WEIGHTS = contextvars.ContextVar("described_weights", default=False)


@contextlib.contextmanager
def zero_weights() -> Iterator[None]:
    """Makes new weights zeros that take no memory until they are assigned their values."""
    token = _ZERO_WEIGHTS.set(True)
    try:
        yield
    finally:
        _ZERO_WEIGHTS.reset(token)


@contextlib.contextmanager
def described_weights() -> Iterator[None]:
    """Makes new weights mere descriptions (shape and dtype): a plan that takes no memory."""
    token = _DESCRIBED_WEIGHTS.set(True)
    try:
        yield
    finally:
        _DESCRIBED_WEIGHTS.reset(token)


def arguments_of(cls: type, source: object) -> dict[str, Any]:
    """Returns the arguments of a layer's constructor that `source` has as attributes.

    So a layer is built from a backbone's description, or its own layers from the layer. What
    belongs to the one layer alone is left out: `seed`, and what Keras takes (`name`, `dtype`).

    Args:
        cls: The layer's class; what its constructor gets is also an attribute of it.
        source: A description, or a layer.
    """
    init = cls.__init__  # type: ignore[misc]  # of the class, for Keras's `__new__` hides it
    names = [
        name
        for name, argument in list(inspect.signature(init).parameters.items())[1:]
        if argument.kind is not argument.VAR_KEYWORD and name != "seed"
    ]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


class SeededLayer(keras.layers.Layer):
    """A layer whose random weights and dropout follow from one seed.

    A subclass keeps each argument of its constructor under the argument's name; its configuration
    follows from that.

    Args:
        dropout: Rate, in [0, 1); rounded to 256ths.
        seed: Seed of weights and dropout; `None` takes Keras's global seed.
        lora: Of an encoder that has adapters: the fields of their `LoraConfig`.
    """

    def __init__(
        self,
        *,
        dropout: float,
        seed: int | None = None,
        lora: LoraConfig | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.dropout = dropout
        self.seed = seed
        self.lora = LoraConfig(**lora) if isinstance(lora, Mapping) else lora
        self._seeds = seed_stream(seed)
        self.seed_generator = keras.random.SeedGenerator(next(self._seeds))
        self._seed_state = self.seed_generator.state.value  # so that tf.train.Checkpoint finds it

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own: dict[str, Any] = {"dropout": self.dropout, "seed": self.seed}
        if self.lora is not None:
            own["lora"] = dataclasses.asdict(self.lora)
        return {**super().get_config(), **own, **arguments_of(type(self), self)}

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Refuses: matrices in 8 bits are made at export."""
        raise ConfigError(NO_QUANTIZE)

    def _add(
        self, name: str, shape: tuple[int, ...], initializer: Any, *, dtype: str | None = None
    ) -> None:
        if _DESCRIBED_WEIGHTS.get():
            setattr(self, name, keras.KerasTensor(shape, self.variable_dtype, name=name))
            return
        if _ZERO_WEIGHTS.get():
            initializer = _untouched_zeros
        weight = self.add_weight(
            shape=shape, initializer=initializer, name=name, dtype=dtype, autocast=False
        )
        setattr(self, name, weight)

    @property
    def compute_dtype(self) -> str:
        """What the layer computes in; for other engines float32, whose precision is an option."""
        return "float32" if writes_portable_ops() else str(super().compute_dtype)

    @property
    def rounded_dropout(self) -> float:
        """The rate in 256ths, to which it is rounded: a random byte decides over each number."""
        return min(round(self.dropout * 256), 255) / 256

    def _drop(self, x: tf.Tensor, training: bool | None) -> tf.Tensor:
        if not training or not self.rounded_dropout:
            return x
        # Multiplied, not selected: to select takes eight times as long in bfloat16 on a CPU.
        kept = x * tf.cast(self._kept(tf.shape(x)), x.dtype)
        return kept * (1.0 / (1.0 - self.rounded_dropout))

    def _kept(self, shape: tf.Tensor) -> tf.Tensor:
        """Returns a random tensor of bool, true where dropout keeps a number."""
        count = tf.reduce_prod(shape)
        # Drawing random bits is most of what dropout costs: four numbers share 32 of them.
        bits = tf.random.stateless_uniform(
            ((count + 3) // 4,), self._next_seed(), None, None, tf.uint32
        )
        numbers = tf.reshape(tf.bitcast(bits, tf.uint8), (-1,))[:count]
        lowest = tf.constant(int(self.rounded_dropout * 256), tf.uint8)
        return tf.reshape(numbers >= lowest, shape)

    def _next_seed(self) -> tf.Tensor:
        """Returns another seed at each call, (2,) int64, in each replica another one."""
        seed = tf.cast(self.seed_generator.next(), tf.int64)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            # Replicas hold equal states: without this, the rows of each would be dropped alike.
            seed += tf.stack([0, tf.cast(replica.replica_id_in_sync_group, tf.int64) * 2**32])
        return seed


def _untouched_zeros(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    """Zeros on pages that the system has promised but not yet given.

    TensorFlow's own would be freed into its allocator and leave holes that later weights do not
    fit: a large model would take half its size more.
    """
    size = math.prod(shape)
    width = tf.as_dtype(dtype).size
    buffer = np.zeros(size * width + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    # Bits of the same width: DLPack, which alone does not copy, knows no bfloat16 of NumPy's.
    bits = buffer[start : start + size * width].view(f"u{width}").reshape(shape)
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(bits.__dlpack__()), dtype)
