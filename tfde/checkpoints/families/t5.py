"""T5's encoder in the files of Hugging Face and of keras-hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.families.family import (
    FieldsOfConfig,
    HuggingFaceFamily,
    KerasHubFamily,
    StoredVariable,
    WeightSource,
    names_of,
    numbered,
)
from tfde.config.backbones import Activation, T5Config
from tfde.errors import ConfigError
from tfde.text.tokenizer import Tokenizer

_FEEDFORWARD: dict[tuple[Activation, bool], str] = {
    ("relu", False): "relu",
    ("gelu", False): "gelu",
    ("gelu_tanh", True): "gated-gelu",
    ("silu", True): "gated-silu",
    ("relu", True): "gated-relu",
}
_T5_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_approximate": "gelu_tanh",
    "relu": "relu",
}


# ---- Hugging Face --------------------------------------------------------------------------------


def _t5(fields: FieldsOfConfig) -> T5Config:
    kinds = {name: kind for kind, name in _FEEDFORWARD.items()}
    activation, gated = kinds[fields.choice("feed_forward_proj", "relu", kinds)]
    buckets = fields.size("relative_attention_num_buckets", 32)
    max_distance = fields.size("relative_attention_max_distance", 128)
    if buckets < 4:
        fields.refuse("relative_attention_num_buckets", "at least 4", buckets)
    if max_distance <= buckets // 4:  # the logarithm begins there
        fields.refuse("relative_attention_max_distance", f"above {buckets // 4}", max_distance)
    return T5Config(
        vocabulary_size=fields.size("vocab_size"),
        num_layers=fields.size("num_layers"),
        num_heads=fields.size("num_heads"),
        hidden_dim=fields.size("d_model"),
        intermediate_dim=fields.size("d_ff"),
        key_value_dim=fields.size("d_kv"),
        dropout=fields.number("dropout_rate", 0.1),
        activation=activation,
        gated=gated,
        relative_buckets=buckets,
        relative_max_distance=max_distance,
        layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-6),
    )


def t5_sources(backbone: Backbone) -> Iterator[WeightSource]:
    """Yields the source of every variable of a T5 encoder."""
    encoder = backbone.encoder
    yield WeightSource(backbone.token_embedder.token_table, ("shared.weight",))
    attention = "encoder.block.{}.layer.0.SelfAttention."
    feedforward = "encoder.block.{}.layer.1."
    yield WeightSource(
        encoder.relative_table, (attention.format(0) + "relative_attention_bias.weight",)
    )
    for i, layer in enumerate(encoder.transformer_layers):
        prefix, inner = attention.format(i), feedforward.format(i) + "DenseReluDense."
        parts = tuple(f"{prefix}{part}.weight" for part in "qkv")
        yield WeightSource(layer.qkv_kernel, parts, transposed=True)
        yield WeightSource(layer.attention_output_kernel, (f"{prefix}o.weight",), transposed=True)
        norm = f"encoder.block.{i}.layer.0.layer_norm.weight"
        yield WeightSource(layer.attention_norm_gamma, (norm,))
        parts = ("wi_0", "wi_1") if layer.gated else ("wi",)
        parts = tuple(f"{inner}{part}.weight" for part in parts)
        yield WeightSource(layer.intermediate_kernel, parts, transposed=True)
        yield WeightSource(layer.output_kernel, (f"{inner}wo.weight",), transposed=True)
        norm = feedforward.format(i) + "layer_norm.weight"
        yield WeightSource(layer.feedforward_norm_gamma, (norm,))
    yield WeightSource(encoder.norm_gamma, ("encoder.final_layer_norm.weight",))


def write_t5_config(config: T5Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the `config.json` of a `T5EncoderModel`.

    Raises:
        ConfigError: transformers has no such feed-forward network.
    """
    kind = (config.activation, config.gated)
    if kind not in _FEEDFORWARD:
        known = ", ".join(f"{name}{' gated' if gated else ''}" for name, gated in _FEEDFORWARD)
        raise ConfigError(
            f"`activation` must be one of {known} for transformers' T5EncoderModel."
            f" Received: {config.activation}{' gated' if config.gated else ''}"
        )
    return {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "d_model": config.hidden_dim,
        "d_ff": config.intermediate_dim,
        "d_kv": config.key_value_dim,
        "feed_forward_proj": _FEEDFORWARD[kind],
        "dropout_rate": config.dropout,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "eos_token_id": tokenizer.end_id,
        "is_encoder_decoder": True,
    }


T5_FAMILY = HuggingFaceFamily(
    _t5,
    t5_sources,
    ("",),
    "encoder.final_layer_norm.weight",
    {
        "vocab_size": ("shared.weight", 0),
        "d_model": ("shared.weight", 1),
        "relative_attention_num_buckets": (
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            0,
        ),
        "num_heads": ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 1),
        "num_heads*d_kv": ("encoder.block.0.layer.0.SelfAttention.q.weight", 0),
        "d_ff": ("encoder.block.0.layer.1.DenseReluDense.wo.weight", 1),
    },
    ("num_layers", "encoder.block."),
)


# ---- keras-hub -----------------------------------------------------------------------------------


def _keras_hub_t5(fields: FieldsOfConfig) -> T5Config:
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
        names_of("reversible_embedding"),
        ("vocabulary_size", "hidden_dim"),
    )
    yield StoredVariable(
        "encoder",
        "relative_table",
        names_of("t5_transformer_layer/self_attention"),
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
            yield StoredVariable(i, attribute, names_of(*layers), shape)
    yield StoredVariable("encoder", "norm_gamma", names_of("t5_layer_norm"), (hidden,))


# Only the encoder is read: Keras numbers the decoder's layers after it.
T5_KERAS_HUB_FAMILY = KerasHubFamily(
    _keras_hub_t5,
    _t5_sizes,
    _t5_stored,
    "t5_transformer_layer",
    foreign_part="cross_attention",
    absent_parts=_t5_absent_parts,
)
