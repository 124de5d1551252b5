"""A functional Keras model as a backbone: as a whole, for nobody knows where it could be cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.lora import enable_lora
from tfde.backbones.seeded_layer import SeededLayer, arguments_of
from tfde.config.backbones import BackboneConfig
from tfde.errors import ConfigError, shorten

# What inputs and outputs are called by keras-hub and by transformers.
_TOKEN_IDS, _MASKS = ("token_ids", "input_ids"), ("padding_mask", "attention_mask")
_SEGMENTS = ("segment_ids", "token_type_ids")
_SEQUENCES = ("sequence_output", "last_hidden_state")
_ENCODER = "encoder_"


@dataclass(frozen=True)
class KerasModelConfig(BackboneConfig):
    """A Keras model from token ids and mask to a vector a token, as Keras writes it down.

    Args:
        architecture: What `keras.Model.to_json` gives.
        vocabulary_size: V, how many token ids it takes.
        hidden_dim: H.
        longest: Most tokens of a text; 0 for no limit.
    """

    kind = "keras_model"
    is_whole = True
    may_be_0 = ("longest",)
    dropout = 0.0  # its own rates stand in `architecture`

    architecture: str
    vocabulary_size: int
    hidden_dim: int
    longest: int = 0

    @property
    def max_sequence_length(self) -> int | None:  # type: ignore[override]
        """Most tokens of a text; `None` for no limit."""
        return self.longest or None


@keras.saving.register_keras_serializable(package="tfde")
class TokenIds(SeededLayer):
    """The token embedder of a model that embeds its tokens itself: passes them on, (B, L)."""

    def __init__(self, *, seed: int | None = None, **kwargs: Any) -> None:
        kwargs.pop("dropout", None)
        super().__init__(dropout=0.0, seed=seed, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Has no weights."""

    def call(self, token_ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the token ids."""
        return token_ids


@keras.saving.register_keras_serializable(package="tfde")
class KerasModelEncoder(SeededLayer):
    """The model as one layer.

    Args:
        architecture: What `keras.Model.to_json` gives.
        hidden_dim: H.

    Call arguments:
        token_ids: (B, L) int32.
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        The sequence output, (B, L, H).
    """

    def __init__(
        self, architecture: str, hidden_dim: int, *, seed: int | None = None, **kwargs: Any
    ) -> None:
        kwargs.pop("dropout", None)
        super().__init__(dropout=0.0, seed=seed, **kwargs)
        self.architecture = architecture
        self.hidden_dim = hidden_dim

    def build(self, input_shape: Any) -> None:
        """Makes the model, whose weights are named after this layer."""
        if '"keras_hub' in self.architecture:
            import keras_hub  # noqa: F401  # makes its classes known to Keras
        self.model = keras.models.model_from_json(self.architecture)
        if self.lora is not None:
            enable_lora(self, self.lora)

    def call(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """Returns the sequence output, (B, L, H)."""
        given = {
            "token_ids": token_ids,
            "padding_mask": padding_mask,
            "segment_ids": tf.zeros_like(token_ids),
        }
        roles = _roles(self.model)
        inputs = keras.tree.map_structure(lambda role: given[role], roles)
        return _sequence(self.model(inputs, training=bool(training)))


def build_keras_model(
    config: KerasModelConfig, embedder: dict[str, Any], encoder: dict[str, Any]
) -> tuple[TokenIds, KerasModelEncoder]:
    """Returns both layers; see `tfde.backbones.registry.Build`. The model has its own dtype."""
    layer = KerasModelEncoder(**arguments_of(KerasModelEncoder, config), **encoder)
    return TokenIds(**embedder), layer


def describe_keras_model(
    model: keras.Model, *, vocabulary_size: int
) -> tuple[KerasModelConfig, keras.Model]:
    """Returns the description of a model and, of one with a decoder, the encoder alone.

    Args:
        model: A functional model. Its inputs are called `token_ids` and `padding_mask`, as
            keras-hub does, or `input_ids` and `attention_mask`; segment ids may be among them,
            and are zeros. It gives `sequence_output` among others, or nothing but that.
        vocabulary_size: V, where the model does not say.

    Raises:
        ConfigError: it is not functional, or has other inputs or outputs.
    """
    if not isinstance(model, keras.models.Model) or not hasattr(model, "operations"):
        raise ConfigError(
            "`backbone` must be a functional Keras model (or `to_functional` of one)."
            f" Received: {type(model).__name__}"
        )
    longest = getattr(model, "max_sequence_length", None) or 0
    vocabulary_size = getattr(model, "vocabulary_size", None) or vocabulary_size
    inputs, outputs = model.input, model.output
    if isinstance(outputs, Mapping) and f"{_ENCODER}sequence_output" in outputs:
        inputs = {k.removeprefix(_ENCODER): v for k, v in inputs.items() if k.startswith(_ENCODER)}
        model = keras.Model(inputs, outputs[f"{_ENCODER}sequence_output"], name="encoder")
    _roles(model)
    shape = _sequence(model.output).shape
    if len(shape) != 3 or shape[-1] is None:
        raise ConfigError(
            "`backbone` must give a vector a token, (batch, length, size)."
            f" Received: {tuple(shape)}"
        )
    config = KerasModelConfig(model.to_json(), int(vocabulary_size), int(shape[-1]), int(longest))
    return config, model


def _roles(model: keras.Model) -> Any:
    """Returns, in the structure of the model's inputs, what each of them is."""
    structure = model.input
    if isinstance(structure, Mapping):
        names: Any = {name: name for name in structure}
    else:
        names = keras.tree.map_structure(lambda tensor: tensor.name, structure)
    roles = keras.tree.map_structure(_role, names)
    if "token_ids" not in keras.tree.flatten(roles):
        raise ConfigError("`backbone` must take token ids. Received: no such input")
    return roles


def _role(name: str) -> str:
    for role, known in (
        ("token_ids", _TOKEN_IDS),
        ("padding_mask", _MASKS),
        ("segment_ids", _SEGMENTS),
    ):
        if name in known:
            return role
    all_known = ", ".join((*_TOKEN_IDS, *_MASKS, *_SEGMENTS))
    raise ConfigError(
        f"`backbone` must be a Keras model whose inputs are called {all_known}."
        f" Received: {shorten(name)}"
    )


def _sequence(output: Any) -> Any:
    if not isinstance(output, Mapping):
        return output
    name = next((name for name in _SEQUENCES if name in output), None)
    if name is None:
        raise ConfigError(
            f"`backbone` must give {' or '.join(_SEQUENCES)}. Received: {', '.join(output)}"
        )
    return output[name]
