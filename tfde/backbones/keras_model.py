"""A functional Keras model as a backbone: its token embedding and the rest, or as a whole."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.lora import enable_lora
from tfde.backbones.seeded_layer import SeededLayer, arguments_of
from tfde.config.backbones import BackboneConfig
from tfde.errors import ConfigError, shorten
from tfde.layers.keras_layer import know_classes

_LOG = logging.getLogger(__name__)
# What inputs and outputs are called by keras-hub and by transformers.
_TOKEN_IDS, _MASKS = ("token_ids", "input_ids"), ("padding_mask", "attention_mask")
_SEGMENTS = ("segment_ids", "token_type_ids")
_SEQUENCES = ("sequence_output", "last_hidden_state")
_ENCODER = "encoder_"
_EMBEDDED = "embedded_tokens"


@dataclass(frozen=True)
class KerasModelConfig(BackboneConfig):
    """A Keras model from token ids and mask to a vector a token, as Keras writes it down.

    Args:
        architecture: What `keras.Model.to_json` gives.
        vocabulary_size: V, how many token ids it takes.
        hidden_dim: H.
        longest: Most tokens of a text; 0 for no limit.
        embedder: The layer that embeds tokens, as Keras writes it down in JSON; empty where the
            model could not be cut behind one, and is one part.
    """

    kind = "keras_model"
    may_be_0 = ("longest",)
    dropout = 0.0  # its own rates stand in `architecture`

    architecture: str
    vocabulary_size: int
    hidden_dim: int
    longest: int = 0
    embedder: str = ""

    @property
    def is_whole(self) -> bool:  # type: ignore[override]
        """Whether token embedder and encoder are one part."""
        return not self.embedder

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
class KerasTokenEmbedder(SeededLayer):
    """The layer of a model that embeds its tokens.

    Args:
        embedder: The layer as Keras writes it down in JSON.

    Call arguments:
        token_ids: (B, L) int32.

    Returns:
        What the layer makes of them, (B, L, E).
    """

    def __init__(self, embedder: str, *, seed: int | None = None, **kwargs: Any) -> None:
        kwargs.pop("dropout", None)
        super().__init__(dropout=0.0, seed=seed, **kwargs)
        self.embedder = embedder

    def build(self, input_shape: Any) -> None:
        """Makes the layer, whose weights are named after this one."""
        know_classes(self.embedder)
        self.layer = keras.saving.deserialize_keras_object(json.loads(self.embedder))
        if not self.layer.built:
            self.layer.build((None, None))

    def call(self, token_ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the embedded tokens, (B, L, E)."""
        return self.layer(token_ids)


@keras.saving.register_keras_serializable(package="tfde")
class KerasModelEncoder(SeededLayer):
    """The model, or what follows its token embedding, as one layer.

    Args:
        architecture: What `keras.Model.to_json` gives.
        hidden_dim: H.
        embedder: As in `KerasModelConfig`; of a model that is cut this is the rest.

    Call arguments:
        x: Token ids, (B, L) int32, or embedded tokens, (B, L, E).
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        The sequence output, (B, L, H).
    """

    def __init__(
        self,
        architecture: str,
        hidden_dim: int,
        *,
        embedder: str = "",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("dropout", None)
        super().__init__(dropout=0.0, seed=seed, **kwargs)
        self.architecture = architecture
        self.hidden_dim = hidden_dim
        self.embedder = embedder

    def build(self, input_shape: Any) -> None:
        """Makes the model, whose weights are named after this layer."""
        know_classes(self.architecture)
        model = keras.models.model_from_json(self.architecture)
        if self.embedder and (cut := _cut(model)) is not None:
            layer, model = cut
            _free(layer)
        self.model = model
        if self.lora is not None:
            enable_lora(self, self.lora)

    def call(
        self, x: tf.Tensor, padding_mask: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """Returns the sequence output, (B, L, H)."""
        zeros = tf.zeros_like(padding_mask)
        given = {
            "token_ids": x,
            _EMBEDDED: x,
            "padding_mask": padding_mask,
            "segment_ids": zeros,
            "position_ids": zeros + tf.range(tf.shape(zeros)[1]),
        }
        roles = _roles(self.model)
        inputs = keras.tree.map_structure(lambda role: given[role], roles)
        return _sequence(self.model(inputs, training=bool(training)))


def build_keras_model(
    config: KerasModelConfig, embedder: dict[str, Any], encoder: dict[str, Any]
) -> tuple[TokenIds | KerasTokenEmbedder, KerasModelEncoder]:
    """Returns both layers; see `tfde.backbones.registry.Build`.

    The model keeps the dtype that it was written down with, and both layers say so.
    """
    own = keras.dtype_policies.get(_own_policy(json.loads(config.architecture)))
    if (asked := encoder["dtype"].name) != own.name:
        _LOG.warning("a Keras model of one's own keeps its dtype, %s, not %s", own.name, asked)
    embedder, encoder = ({**arguments, "dtype": own} for arguments in (embedder, encoder))
    layer = KerasModelEncoder(**arguments_of(KerasModelEncoder, config), **encoder)
    if config.is_whole:
        return TokenIds(**embedder), layer
    return KerasTokenEmbedder(config.embedder, **embedder), layer


def describe_keras_model(
    model: keras.Model, *, vocabulary_size: int
) -> tuple[KerasModelConfig, list[np.ndarray], list[np.ndarray]]:
    """Returns the description of a model, and the weights of its token embedder and of the rest.

    Of a model with a decoder the encoder alone is described.

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
            "`backbone` must be a functional Keras model, such as `keras.Model(ids, layers(ids))`"
            ' with `ids = keras.Input((None,), dtype="int32", name="token_ids")`.'
            f" Received: {type(model).__name__}"
        )
    longest = getattr(model, "max_sequence_length", None) or _longest(model)
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
    sizes = (int(vocabulary_size), int(shape[-1]), int(longest))
    architecture = model.to_json()  # cutting adds to the graph that is written
    cut = _cut(model)
    if cut is None:
        return KerasModelConfig(architecture, *sizes), [], model.get_weights()
    layer, rest = cut
    embedder = json.dumps(keras.saving.serialize_keras_object(layer))
    config = KerasModelConfig(architecture, *sizes, embedder=embedder)
    return config, layer.get_weights(), rest.get_weights()


def _longest(model: keras.Model) -> int:
    """Returns how many places the tables of positions have, as keras-hub's say it; 0 for none."""
    lengths = [getattr(layer, "sequence_length", None) for layer in model._flatten_layers()]
    return min((length for length in lengths if isinstance(length, int)), default=0)


def _own_policy(described: Mapping[str, Any]) -> str:
    """Returns the name of the last layer's dtype policy in a model that Keras wrote as JSON."""
    config = described.get("config", {})
    for layer in reversed(config.get("layers", [])):
        if layer.get("class_name") != "InputLayer":
            return _own_policy(layer)
    policy = config.get("dtype")
    named = policy.get("config", {}).get("name") if isinstance(policy, Mapping) else policy
    return str(named or "float32")


def _cut(model: keras.Model) -> tuple[keras.layers.Layer, keras.Model] | None:
    """Returns the layer that embeds the tokens and what follows it; `None` where none is found.

    It is called `token_embedding`, as keras-hub's are, or is the one Keras `Embedding` of the
    token ids. Nothing behind it may need the ids themselves, or a mask that it makes.
    """
    inputs = dict(
        zip(keras.tree.flatten(_roles(model)), keras.tree.flatten(model.input), strict=True)
    )
    token_ids = inputs.pop("token_ids")
    embedding = keras.layers.Embedding
    found = [
        (layer, node.output_tensors[0])
        for layer in model.layers
        if layer is getattr(model, "token_embedding", None)
        or layer.name == "token_embedding"
        or isinstance(layer, embedding)
        for node in layer._inbound_nodes
        if node.input_tensors and node.input_tensors[0] is token_ids
    ]
    if len(found) != 1 or getattr(found[0][0], "mask_zero", False):
        return None
    layer, embedded = found[0]
    try:
        with warnings.catch_warnings():  # that the tensor has a name of its own
            warnings.filterwarnings("ignore", "When providing `inputs` as a dict")
            rest = keras.Model({_EMBEDDED: embedded, **inputs}, _sequence(model.output))
    except ValueError:  # something else reads the token ids
        return None
    shared = {id(weight) for weight in layer.weights} & {id(weight) for weight in rest.weights}
    return None if shared else (layer, rest)


def _free(layer: keras.layers.Layer) -> None:
    """Drops the weights of a layer that the graph of a model still knows, and nobody calls."""
    for name, weight in list(vars(layer).items()):
        if isinstance(weight, keras.Variable):
            layer._untrack_variable(weight)
            super(keras.layers.Layer, layer).__delattr__(name)


def _roles(model: keras.Model) -> Any:
    """Returns, in the structure of the model's inputs, what each of them is."""
    structure = model.input
    if isinstance(structure, Mapping):
        names: Any = {name: name for name in structure}
    else:
        names = keras.tree.map_structure(lambda tensor: tensor.name, structure)
    roles = keras.tree.map_structure(_role, names)
    if not {"token_ids", _EMBEDDED} & set(keras.tree.flatten(roles)):
        raise ConfigError("`backbone` must take token ids. Received: no such input")
    return roles


def _role(name: str) -> str:
    for role, known in (
        ("token_ids", _TOKEN_IDS),
        ("padding_mask", _MASKS),
        ("segment_ids", _SEGMENTS),
        ("position_ids", ("position_ids",)),
        (_EMBEDDED, (_EMBEDDED,)),
    ):
        if name in known:
            return role
    all_known = ", ".join((*_TOKEN_IDS, *_MASKS, *_SEGMENTS, "position_ids"))
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
