"""Low-rank adapters (LoRA) beside the matrices of an encoder."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.seeded_layer import SeededLayer
from tfde.config.lora import LoraConfig
from tfde.errors import ConfigError


class Matrix(NamedTuple):
    """Some columns of one of a layer's kernels.

    Attributes:
        kernel: The kernel's attribute.
        first: The first of the columns.
        columns: How many there are.
    """

    kernel: str
    first: int
    columns: int


class AdaptedLayer(SeededLayer):
    """Base of a layer whose matrices may have adapters: x W + (alpha / rank) x A B.

    Adapters are float32 under every policy, so that small updates count, and are used in the
    compute dtype.

    Source: Hu et al. 2021, section 4.1 (equation 3).
    """

    _adapters: tuple[str, ...] = ()
    _adapter_scale = 1.0

    def matrices(self) -> dict[str, Matrix]:
        """Returns the matrices that adapters can stand beside, by name."""
        raise NotImplementedError

    def add_adapter(self, name: str, lora: LoraConfig) -> None:
        """Puts an adapter beside a matrix; nothing that the layer computes changes by it."""
        matrix = self.matrices()[name]
        rows = getattr(self, matrix.kernel).shape[0]
        initializer = keras.initializers.HeUniform(seed=next(self._seeds))
        self._tracker.unlock()
        self._add(f"{name}_lora_a", (rows, lora.rank), initializer, dtype="float32")
        self._add(f"{name}_lora_b", (lora.rank, matrix.columns), "zeros", dtype="float32")
        self._tracker.lock()
        self._adapters = (*self._adapters, name)
        self._adapter_scale = lora.scale

    def merge_adapters(self) -> None:
        """Adds the adapters to their matrices, which give the same without them from then on."""
        for kernel in {self.matrices()[name].kernel for name in self._adapters}:
            a, b = self._factors(kernel)
            variable = getattr(self, kernel)
            sum_ = keras.ops.convert_to_numpy(variable).astype(np.float32) + (a @ b).numpy()
            variable.assign(sum_.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))
        for name in self._adapters:
            for factor in (f"{name}_lora_a", f"{name}_lora_b"):
                self._untrack_variable(getattr(self, factor))
                # Keras' own would collect garbage each time, for seconds in all.
                super(keras.layers.Layer, self).__delattr__(factor)
        self._adapters = ()

    def _product(self, x: tf.Tensor, kernel: str) -> tf.Tensor:
        """Returns `x` times a kernel and its adapters, in the dtype of `x`."""
        y = tf.matmul(x, tf.cast(getattr(self, kernel).value, x.dtype))
        if any(self.matrices()[name].kernel == kernel for name in self._adapters):
            a, b = (tf.cast(factor, x.dtype) for factor in self._factors(kernel))
            y += tf.matmul(tf.matmul(x, a), b)
        return y

    def _factors(self, kernel: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns A and (alpha / rank) B of a whole kernel, zeros where it has no adapter."""
        columns = getattr(self, kernel).shape[1]
        a, b = [], []
        for name in self._adapters:
            matrix = self.matrices()[name]
            if matrix.kernel == kernel:
                right = columns - matrix.first - matrix.columns
                factor = getattr(self, f"{name}_lora_b").value * self._adapter_scale
                a.append(getattr(self, f"{name}_lora_a").value)
                b.append(tf.pad(factor, [[0, 0], [matrix.first, right]]))
        return tf.concat(a, axis=1), tf.concat(b, axis=0)


def enable_lora(encoder: keras.layers.Layer, lora: LoraConfig) -> None:
    """Puts adapters beside matrices of an encoder, whose other weights stop training.

    Args:
        encoder: With layers of ours, or with Dense and EinsumDense of Keras.
        lora: Rank, scale, and which matrices.

    Raises:
        ConfigError: it has adapters already, or none of the matrices named.
    """
    if _adapted(encoder):
        raise ConfigError("the encoder has adapters already: `merge_lora` folds them in.")
    found = matrices_of(encoder)
    chosen = lora.choose(list(found))
    for weight in encoder.weights:
        weight.trainable = False
    for path in chosen:
        layer, name = found[path]
        if isinstance(layer, AdaptedLayer):
            layer.add_adapter(name, lora)
        else:
            layer.enable_lora(lora.rank, lora_alpha=lora.scale * lora.rank)
    encoder.lora = lora


def matrices_of(encoder: keras.layers.Layer) -> dict[str, tuple[keras.layers.Layer, str]]:
    """Returns, by path, each matrix that can have an adapter: its layer and its name in there."""
    found: dict[str, tuple[keras.layers.Layer, str]] = {}
    for layer in encoder._flatten_layers():
        path = (layer.path or layer.name).removeprefix(encoder.path).removeprefix("/")
        if isinstance(layer, AdaptedLayer):
            prefix = path and f"{path}/"
            found |= {f"{prefix}{name}": (layer, name) for name in layer.matrices()}
        elif isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense):
            found[path] = (layer, "")
    return found


def merge_lora(encoder: keras.layers.Layer) -> None:
    """Adds an encoder's adapters to their matrices; all its weights train again."""
    for layer in _adapted(encoder):
        if isinstance(layer, AdaptedLayer):
            layer.merge_adapters()
        else:
            _merge_of_keras(layer)
    encoder.lora = None
    # To set what is set already would be passed over, and not reach the weights.
    encoder.trainable = False
    encoder.trainable = True


def _adapted(encoder: keras.layers.Layer) -> list[keras.layers.Layer]:
    return [
        layer
        for layer in encoder._flatten_layers()
        if getattr(layer, "_adapters", ()) or getattr(layer, "lora_enabled", False)
    ]


def _merge_of_keras(layer: keras.layers.Layer) -> None:
    kernel = next(weight for weight in layer.weights if weight.name == "kernel")
    a, b = (keras.ops.convert_to_numpy(x) for x in (layer.lora_kernel_a, layer.lora_kernel_b))
    sum_ = keras.ops.convert_to_numpy(kernel).astype(np.float32)
    sum_ += layer.lora_alpha / layer.lora_rank * (a @ b)
    kernel.assign(sum_.astype(tf.as_dtype(kernel.dtype).as_numpy_dtype))
    layer.lora_enabled, layer.lora_rank = False, None
    for name in ("lora_kernel_a", "lora_kernel_b"):
        layer._untrack_variable(getattr(layer, name))
        super(keras.layers.Layer, layer).__delattr__(name)
