"""The backbones of keras-hub that ours can hold: their fields, and where their weights stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import keras

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.families import FieldsOfConfig
from tfde.config.model import Activation, BackboneConfig, BertConfig, T5Config

_T5_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_approximate": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True)
class StoredVariable:
    """Where the values of a variable of ours stand.

    Args:
        owner: The layer that has it: one of the backbone's two, or the number of a Transformer
            layer.
        attribute: Its name there.
        names: Arrays that lie side by side in it.
        shape: Sizes of each of the arrays, by the names that `KerasHubFamily.sizes` gives them.
    """

    owner: Literal["token_embedder", "encoder"] | int
    attribute: str
    names: tuple[str, ...]
    shape: tuple[str, ...]

    def variable(self, backbone: Backbone) -> keras.Variable:
        """Returns the variable."""
        if isinstance(self.owner, int):
            return getattr(backbone.encoder.transformer_layers[self.owner], self.attribute)
        return getattr(getattr(backbone, self.owner), self.attribute)


@dataclass(frozen=True)
class KerasHubFamily:
    """How one backbone class of keras-hub becomes ours.

    Args:
        read_config: Fields of `config.json` to our description.
        sizes: Our description to the sizes of the arrays, by name.
        stored: Our description to every variable.
        layer: What Keras calls a Transformer layer, up to its number.
        foreign_part: What only layers have that are not ours (a decoder's).
        absent_parts: Our description to what no layer of ours may have, by the field of
            `config.json` that says so.
    """

    read_config: Callable[[FieldsOfConfig], BackboneConfig]
    sizes: Callable[[Any], Mapping[str, int]]
    stored: Callable[[Any], Iterator[StoredVariable]]
    layer: str
    foreign_part: str = ""
    absent_parts: Callable[[Any], Mapping[str, str]] = lambda config: {}


# ---- BERT and its kin ----------------------------------------------------------------------------


def _bert(
    fields: FieldsOfConfig, *, activation: Activation, epsilon: float, segments: bool
) -> BertConfig:
    return BertConfig(
        vocabulary_size=fields.size("vocabulary_size"),
        num_layers=fields.size("num_layers"),
        num_heads=_heads(fields),
        hidden_dim=fields.size("hidden_dim"),
        intermediate_dim=fields.size("intermediate_dim"),
        max_sequence_length=fields.size("max_sequence_length"),
        num_segments=fields.size("num_segments") if segments else 0,
        dropout=fields.number("dropout", 0.1),
        activation=activation,
        layer_norm_epsilon=epsilon,
    )


def _bert_sizes(config: BertConfig) -> dict[str, int]:
    return {**vars(config), "hidden_dim / num_heads": config.hidden_dim // config.num_heads}


def _bert_stored(
    config: BertConfig, *, token_table: str, position_table: str
) -> Iterator[StoredVariable]:
    for attribute, layer, length in (
        ("token_table", token_table, "vocabulary_size"),
        ("position_table", position_table, "max_sequence_length"),
        *((("segment_table", "embedding", "num_segments"),) if config.num_segments else ()),
    ):
        yield StoredVariable("token_embedder", attribute, _names(layer), (length, "hidden_dim"))
    for index, attribute in enumerate(("norm_gamma", "norm_beta")):
        names = _names("layer_normalization", index=index)
        yield StoredVariable("token_embedder", attribute, names, ("hidden_dim",))
    heads = ("num_heads", "hidden_dim / num_heads")
    for i in range(config.num_layers):
        prefix = f"{numbered('transformer_encoder', i)}/"
        attention = f"{prefix}_self_attention_layer/"
        parts = [f"{attention}{part}_dense" for part in ("query", "key", "value")]
        yield StoredVariable(i, "qkv_kernel", _names(*parts), ("hidden_dim", *heads))
        yield StoredVariable(i, "qkv_bias", _names(*parts, index=1), heads)
        for ours, theirs, rows, columns in (
            ("attention_output", "_self_attention_layer/output_dense", heads, "hidden_dim"),
            ("attention_norm", "_self_attention_layer_norm", (), "hidden_dim"),
            (
                "intermediate",
                "_feedforward_intermediate_dense",
                ("hidden_dim",),
                "intermediate_dim",
            ),
            ("output", "_feedforward_output_dense", ("intermediate_dim",), "hidden_dim"),
            ("output_norm", "_feedforward_layer_norm", (), "hidden_dim"),
        ):
            kinds = ("kernel", "bias") if rows else ("gamma", "beta")
            shapes: tuple[tuple[str, ...], ...] = ((*rows, columns), (columns,))
            for index in range(2):
                names = _names(prefix + theirs, index=index)
                yield StoredVariable(i, f"{ours}_{kinds[index]}", names, shapes[index])


def _bert_family(*, activation: Activation, epsilon: float) -> KerasHubFamily:
    """DistilBERT, RoBERTa and XLM-RoBERTa: positions from 0, no segments, one embedding layer."""
    tables = "token_and_position_embedding"
    return KerasHubFamily(
        partial(_bert, activation=activation, epsilon=epsilon, segments=False),
        _bert_sizes,
        partial(
            _bert_stored,
            token_table=f"{tables}/token_embedding",
            position_table=f"{tables}/position_embedding",
        ),
        "transformer_encoder",
    )


# ---- T5 ------------------------------------------------------------------------------------------


def _t5(fields: FieldsOfConfig) -> T5Config:
    key_value_dim = fields.get("key_value_dim", None)
    gated = fields.get("use_gated_activation", True)
    if not isinstance(gated, bool):
        fields.refuse("use_gated_activation", "true or false", gated)
    return T5Config(
        vocabulary_size=fields.size("vocabulary_size"),
        num_layers=fields.size("num_layers"),
        num_heads=fields.size("num_heads"),
        hidden_dim=fields.size("hidden_dim"),
        intermediate_dim=fields.size("intermediate_dim"),
        key_value_dim=(
            fields.size("hidden_dim") // fields.size("num_heads")
            if key_value_dim is None
            else fields.size("key_value_dim")
        ),
        dropout=fields.number("dropout", 0.1),
        activation=_t5_activation(fields),
        gated=gated,
        relative_buckets=32,  # keras-hub's T5 has no other number
        layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-6),
    )


def _t5_activation(fields: FieldsOfConfig) -> Activation:
    value = fields.get("activation", "relu")
    if isinstance(value, Mapping):  # a registered function, serialised
        value = value.get("config")
    name = str(value).rpartition(">")[2]
    if name not in _T5_ACTIVATIONS:
        fields.refuse("activation", f"one of {', '.join(_T5_ACTIVATIONS)}", value)
    return _T5_ACTIVATIONS[name]


def _t5_sizes(config: T5Config) -> dict[str, int]:
    attention = config.num_heads * config.key_value_dim
    return {**vars(config), "num_heads * key_value_dim": attention}


def _t5_absent_parts(config: T5Config) -> dict[str, str]:
    return {} if config.gated else {"use_gated_activation": "gate_projector"}


def _t5_stored(config: T5Config) -> Iterator[StoredVariable]:
    yield StoredVariable(
        "token_embedder",
        "token_table",
        _names("reversible_embedding"),
        ("vocabulary_size", "hidden_dim"),
    )
    yield StoredVariable(
        "encoder",
        "relative_table",
        _names("t5_transformer_layer/self_attention"),
        ("relative_buckets", "num_heads"),
    )
    hidden, inner, attended = "hidden_dim", "intermediate_dim", "num_heads * key_value_dim"
    gates = ("input_projector", "gate_projector") if config.gated else ("input_projector",)
    for i in range(config.num_layers):
        prefix = f"{numbered('t5_transformer_layer', i)}/"
        attention = f"{prefix}self_attention/"
        parts = tuple(f"{attention}{part}_projector" for part in ("query", "key", "value"))
        for attribute, layers, shape in (
            ("qkv_kernel", parts, (hidden, attended)),
            ("attention_output_kernel", (f"{attention}output_projector",), (attended, hidden)),
            ("attention_norm_gamma", (f"{prefix}self_attention_layer_norm",), (hidden,)),
            ("intermediate_kernel", tuple(prefix + gate for gate in gates), (hidden, inner)),
            ("output_kernel", (f"{prefix}output_projector",), (inner, hidden)),
            ("feedforward_norm_gamma", (f"{prefix}layer_norm",), (hidden,)),
        ):
            yield StoredVariable(i, attribute, _names(*layers), shape)
    yield StoredVariable("encoder", "norm_gamma", _names("t5_layer_norm"), (hidden,))


# ---- both ----------------------------------------------------------------------------------------


def numbered(name: str, i: int) -> str:
    """Returns what Keras calls the i-th layer of a class in a weight file."""
    return name if i == 0 else f"{name}_{i}"


def _names(*layers: str, index: int = 0) -> tuple[str, ...]:
    return tuple(f"layers/{layer}/vars/{index}" for layer in layers)


def _heads(fields: FieldsOfConfig) -> int:
    heads, hidden = fields.size("num_heads"), fields.size("hidden_dim")
    if hidden % heads:
        fields.refuse("num_heads", f"a divisor of `hidden_dim`={hidden}", heads)
    return heads


KERAS_HUB_FAMILIES: dict[str, KerasHubFamily] = {
    "BertBackbone": KerasHubFamily(
        partial(_bert, activation="gelu_tanh", epsilon=1e-12, segments=True),
        _bert_sizes,
        partial(
            _bert_stored,
            token_table="reversible_embedding",
            position_table="position_embedding",
        ),
        "transformer_encoder",
    ),
    "DistilBertBackbone": _bert_family(activation="gelu", epsilon=1e-12),
    "RobertaBackbone": _bert_family(activation="gelu", epsilon=1e-5),
    "XLMRobertaBackbone": _bert_family(activation="gelu", epsilon=1e-5),
    # Of T5 only the encoder is read: Keras numbers the decoder's layers after it.
    "T5Backbone": KerasHubFamily(
        _t5,
        _t5_sizes,
        _t5_stored,
        "t5_transformer_layer",
        foreign_part="cross_attention",
        absent_parts=_t5_absent_parts,
    ),
}
