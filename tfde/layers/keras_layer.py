"""Keras layers of a user's own as pooling and as projection of a tower."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError, first_line, shorten


def written(layer: keras.layers.Layer) -> str:
    """Returns a layer, without its weights, as Keras writes it down in JSON."""
    return json.dumps(keras.saving.serialize_keras_object(layer))


def made(text: str) -> keras.layers.Layer:
    """Returns the layer that `written` wrote, with new weights.

    Raises:
        ConfigError: its class is not known here.
    """
    know_classes(text)
    try:
        return keras.saving.deserialize_keras_object(json.loads(text))
    except (TypeError, ValueError) as error:
        name = json.loads(text).get("class_name")
        if name == "Lambda":
            raise ConfigError(
                "a Lambda layer cannot be stored: write a class of layers, under"
                " keras.saving.register_keras_serializable. Received: a Lambda layer"
            ) from error
        raise ConfigError(
            f"a layer of class {name} cannot be made: import the module that has it under"
            " keras.saving.register_keras_serializable first."
            f" Received: {shorten(first_line(error))}"
        ) from error


def know_classes(text: str) -> None:
    """Makes keras-hub's classes known to Keras, where a description names one."""
    if '"keras_hub' in text:
        import keras_hub  # noqa: F401


def try_pooling(text: str, hidden_dim: int) -> int:
    """Returns how many numbers a pooling layer makes of a text; it is called once.

    Args:
        text: The layer, as `written` gives it.
        hidden_dim: Numbers of a token vector, H.

    Raises:
        ConfigError: it cannot be called on (B, L, H) and a mask, or does not give (B, D).
    """
    states = tf.zeros([2, 3, hidden_dim])
    mask = tf.constant([[1, 1, 0], [1, 1, 1]])
    return _tried("pooling", text, lambda: KerasPooling(text)(states, mask), "(B, L, H) and a mask")


def try_projection(text: str, pooled_dim: int) -> int:
    """Returns how many numbers an embedding has; as `try_pooling`, of (B, H)."""
    vectors = tf.zeros([2, pooled_dim])
    return _tried("projection", text, lambda: KerasProjection(text)(vectors), "(B, H)")


def _tried(argument: str, text: str, call: Callable[[], Any], given: str) -> int:
    name = json.loads(text).get("class_name")
    state = random.getstate()  # of which Keras draws the seeds of layers
    try:
        found = call()
    except Exception as error:  # whatever a layer of anybody's raises
        reason = str(error)
        if "\x1b[1m" in reason:  # Keras puts the message between a page of its own
            reason = reason.split("\x1b[1m")[1].split("\x1b[0m")[0]
        if isinstance(error, ConfigError):
            raise ConfigError(reason) from error
        reason = " ".join(reason.split())[:200]
        raise ConfigError(
            f"`{argument}` must be a layer that takes {given}. Received: {name}: {reason}"
        ) from error
    finally:
        random.setstate(state)
    shape = tuple(found.shape)
    fits = len(shape) == 2 and shape[0] == 2
    rule = f"a layer that makes (B, D) of {given}"
    if not fits:
        made_of = "(" + ", ".join(["B" if shape[:1] == (2,) else "?", *map(str, shape[1:])]) + ")"
        raise ConfigError(f"`{argument}` must be {rule}. Received: {name}, which makes {made_of}")
    return int(shape[1])


@keras.saving.register_keras_serializable(package="tfde")
class KerasPooling(keras.layers.Layer):
    """A Keras layer that makes one vector of the real tokens of a text.

    Args:
        layer: As `written` gives it. It has no weights, and an argument `mask` (bool) or
            `padding_mask` (int32).
        skipped_tokens: So many tokens at the beginning do not count.

    Call arguments:
        sequence_output: Token vectors, (B, L, H), any float dtype.
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        (B, H) float32, or of whatever size the layer gives.

    Raises:
        ConfigError: the layer has weights, or takes no mask.
    """

    def __init__(self, layer: str, *, skipped_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.written = layer
        self.skipped_tokens = skipped_tokens
        self.layer = made(layer)
        taken = inspect.signature(self.layer.call).parameters
        self._mask = next((name for name in ("mask", "padding_mask") if name in taken), "")
        if not self._mask:
            raise ConfigError(
                "`pooling` must be a layer whose `call` takes `mask` or `padding_mask`, or padding"
                f" would count; `max`, `mean` and the like are ours. Received: {self.layer.name}"
            )

    def call(self, sequence_output: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
        """Returns the pooled output, float32."""
        x = tf.cast(sequence_output, tf.float32)
        places = tf.range(tf.shape(padding_mask)[1])[None]
        mask = tf.cast(padding_mask > 0, tf.int32) * tf.cast(
            places >= self.skipped_tokens, tf.int32
        )
        pooled = self.layer(x, **{self._mask: mask > 0 if self._mask == "mask" else mask})
        if self.layer.weights:
            raise ConfigError(
                "`pooling` must be a layer without weights; what learns is the `projection`."
                f" Received: {self.layer.name}"
            )
        return tf.cast(pooled, tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {"layer": self.written, "skipped_tokens": self.skipped_tokens}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="tfde")
class KerasProjection(keras.layers.Layer):
    """A Keras layer that makes an embedding of a pooled vector.

    Args:
        layer: As `written` gives it.

    Call arguments:
        pooled_output: (B, H) float32.

    Returns:
        (B, D) float32.
    """

    def __init__(self, layer: str, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.written = layer

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the layer, whose weights are named after this one."""
        self.layer = made(self.written)
        if not self.layer.built:
            self.layer.build(input_shape)

    def call(self, pooled_output: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the projection, (B, D) float32."""
        takes = "training" in inspect.signature(self.layer.call).parameters
        y = self.layer(pooled_output, **({"training": training} if takes else {}))
        return tf.cast(y, tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "layer": self.written}
