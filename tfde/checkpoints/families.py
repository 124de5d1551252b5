"""The model families of Hugging Face that our backbones can hold, one entry each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.weight_sources import (
    BERT,
    DISTILBERT,
    MPNET,
    WeightSource,
    bert_sources,
    t5_sources,
)
from tfde.config.model import Activation, BackboneConfig, BertConfig, T5Config
from tfde.errors import ConfigError, shorten

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class FieldsOfConfig:
    """The fields of a `config.json`, checked as they are read.

    Args:
        where: The file, for messages.
        value: Its object.
    """

    def __init__(self, where: str, value: Mapping[str, Any]) -> None:
        self._where = where
        self._value = value

    def size(self, name: str, default: int | None = None) -> int:
        """Returns a whole number of at least 1.

        Raises:
            ConfigError: the field is missing or something else.
        """
        value = self._field(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(name, "a whole number of at least 1", value)
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Returns a rate or an epsilon: a number from 0 to below 1.

        Raises:
            ConfigError: the field is something else.
        """
        value = self._field(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.refuse(name, "a number from 0 to below 1", value)
        return float(value)

    def activation(self, name: str, default: str) -> Activation:
        """Returns an activation by our name.

        Raises:
            ConfigError: we do not have it.
        """
        return _ACTIVATIONS[self.choice(name, default, _ACTIVATIONS)]

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """Returns one of some strings.

        Raises:
            ConfigError: the field is something else.
        """
        value = self._field(name, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}", value)
        return str(value)

    def require(self, name: str, wanted: Any) -> None:
        """Checks that a field, if it is there, has the only value that we can hold.

        Raises:
            ConfigError: it has another.
        """
        value = self._value.get(name, wanted)
        if value != wanted:
            self.refuse(name, str(wanted), value)

    def get(self, name: str, default: Any) -> Any:
        """Returns a field as it is."""
        return self._value.get(name, default)

    def refuse(self, name: str, rule: str, value: object) -> None:
        """Raises the error about a field."""
        raise ConfigError(f"{self._where}: `{name}` must be {rule}. Received: {shorten(value)}")

    def _field(self, name: str, default: Any) -> Any:
        value = self._value.get(name, default)
        if value is None:
            raise ConfigError(f"{self._where}: has no field {name!r}.")
        return value


@dataclass(frozen=True)
class Family:
    """How one `model_type` of Hugging Face becomes a backbone.

    Args:
        read_config: Fields of `config.json` to our description.
        sources: Where each variable's values stand.
        prefixes: What models with a head put before the names of the arrays.
        anchor: An array that every checkpoint of the family has.
        sizes: Field of `config.json` (or a product of fields) -> an array and its axis that must
            be as long.
        layers: Field that counts the layers, and the array names of a layer up to its number.
    """

    read_config: Callable[[FieldsOfConfig], BackboneConfig]
    sources: Callable[[Backbone], Iterator[WeightSource]]
    prefixes: tuple[str, ...]
    anchor: str
    sizes: Mapping[str, tuple[str, int]]
    layers: tuple[str, str]


_WORDS = "embeddings.word_embeddings.weight"
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
# RoBERTa and MPNet count positions from the padding id + 1.
_FIRST_POSITION = 2


def _bert(fields: FieldsOfConfig) -> BertConfig:
    fields.require("position_embedding_type", "absolute")
    fields.require("is_decoder", False)
    return _bert_like(fields, num_segments=fields.size("type_vocab_size"))


def _bert_like(fields: FieldsOfConfig, *, num_segments: int) -> BertConfig:
    return BertConfig(
        vocabulary_size=fields.size("vocab_size"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=_heads(fields, "num_attention_heads", "hidden_size"),
        hidden_dim=fields.size("hidden_size"),
        intermediate_dim=fields.size("intermediate_size"),
        max_sequence_length=fields.size("max_position_embeddings"),
        num_segments=num_segments,
        dropout=fields.number("hidden_dropout_prob", 0.1),
        activation=fields.activation("hidden_act", "gelu"),
        layer_norm_epsilon=fields.number("layer_norm_eps", 1e-12),
    )


def _roberta(fields: FieldsOfConfig) -> BertConfig:
    fields.require("pad_token_id", _FIRST_POSITION - 1)
    return _without_first_positions(fields, _bert(fields))


def _mpnet(fields: FieldsOfConfig) -> BertConfig:
    # MPNetModel counts in 32 buckets, whatever its configuration says.
    fields.require("relative_attention_num_buckets", 32)
    fields.require("pad_token_id", _FIRST_POSITION - 1)
    config = dataclasses.replace(_bert_like(fields, num_segments=0), relative_buckets=32)
    return _without_first_positions(fields, config)


def _distilbert(fields: FieldsOfConfig) -> BertConfig:
    return BertConfig(
        vocabulary_size=fields.size("vocab_size"),
        num_layers=fields.size("n_layers"),
        num_heads=_heads(fields, "n_heads", "dim"),
        hidden_dim=fields.size("dim"),
        intermediate_dim=fields.size("hidden_dim"),
        max_sequence_length=fields.size("max_position_embeddings"),
        num_segments=0,
        dropout=fields.number("dropout", 0.1),
        activation=fields.activation("activation", "gelu"),
        layer_norm_epsilon=1e-12,
    )


def _t5(fields: FieldsOfConfig) -> T5Config:
    kinds: dict[str, tuple[Activation, bool]] = {
        "relu": ("relu", False),
        "gelu": ("gelu", False),
        "gated-gelu": ("gelu_tanh", True),
        "gated-silu": ("silu", True),
        "gated-relu": ("relu", True),
    }
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


def _heads(fields: FieldsOfConfig, heads: str, hidden: str) -> int:
    if fields.size(hidden) % fields.size(heads):
        fields.refuse(heads, f"a divisor of `{hidden}`={fields.size(hidden)}", fields.size(heads))
    return fields.size(heads)


def _without_first_positions(fields: FieldsOfConfig, config: BertConfig) -> BertConfig:
    rows = config.max_sequence_length
    if rows <= _FIRST_POSITION:
        fields.refuse("max_position_embeddings", f"above {_FIRST_POSITION}", rows)
    return dataclasses.replace(config, max_sequence_length=rows - _FIRST_POSITION)


_BERT_SIZES = {
    "vocab_size": (_WORDS, 0),
    "hidden_size": (_WORDS, 1),
    "max_position_embeddings": (_POSITIONS, 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
_WITH_SEGMENTS = {**_BERT_SIZES, "type_vocab_size": (_SEGMENTS, 0)}
_BERT_LAYERS = ("num_hidden_layers", "encoder.layer.")
_DPR = ("question_encoder.bert_model.", "ctx_encoder.bert_model.")

_ROBERTA = Family(
    _roberta,
    partial(bert_sources, names=BERT, first_position=_FIRST_POSITION),
    ("", "roberta."),
    _WORDS,
    _WITH_SEGMENTS,
    _BERT_LAYERS,
)
_T5 = Family(
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

FAMILIES: dict[str, Family] = {
    "bert": Family(
        _bert,
        partial(bert_sources, names=BERT),
        ("", "bert.", "model."),
        _WORDS,
        _WITH_SEGMENTS,
        _BERT_LAYERS,
    ),
    "distilbert": Family(
        _distilbert,
        partial(bert_sources, names=DISTILBERT),
        ("", "distilbert."),
        _WORDS,
        {
            "vocab_size": (_WORDS, 0),
            "dim": (_WORDS, 1),
            "max_position_embeddings": (_POSITIONS, 0),
            "hidden_dim": ("transformer.layer.0.ffn.lin1.weight", 0),
        },
        ("n_layers", "transformer.layer."),
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "mpnet": Family(
        _mpnet,
        partial(bert_sources, names=MPNET, first_position=_FIRST_POSITION),
        ("", "mpnet."),
        _WORDS,
        {
            **_BERT_SIZES,
            "relative_attention_num_buckets": ("encoder.relative_attention_bias.weight", 0),
            "num_attention_heads": ("encoder.relative_attention_bias.weight", 1),
        },
        _BERT_LAYERS,
    ),
    "t5": _T5,
    "mt5": _T5,
    "dpr": Family(
        _bert, partial(bert_sources, names=BERT), _DPR, _WORDS, _WITH_SEGMENTS, _BERT_LAYERS
    ),
}
