"""BERT and its kin in Hugging Face's files: DistilBERT, RoBERTa, XLM-RoBERTa, MPNet, DPR."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.families.family import (
    ACTIVATIONS_WRITTEN,
    FieldsOfConfig,
    HuggingFaceFamily,
    WeightSource,
)
from tfde.config.backbones import BertConfig
from tfde.errors import require
from tfde.text.tokenizer import Tokenizer

_WORDS = "embeddings.word_embeddings.weight"
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
# RoBERTa and MPNet count positions from the padding id + 1.
_FIRST_POSITION = 2

# What transformers' MPNetModel has in its code, whatever its configuration says.
_MPNET_PAD_ID, _MPNET_BUCKETS, _MPNET_MAX_DISTANCE = 1, 32, 128


@dataclass(frozen=True)
class BertNames:
    """What a model of BERT's kind calls the parts of a Transformer layer.

    Args:
        layer: The layer's prefix, with `{}` for its number.
        query_key_value: The three linear layers of self-attention.
        attention_output: The linear layer after them.
        attention_norm: The layer norm after that.
        intermediate: First linear layer of the feed-forward network.
        output: Its second one.
        output_norm: The layer norm after it.
    """

    layer: str
    query_key_value: tuple[str, str, str]
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str


BERT = BertNames(
    "encoder.layer.{}.",
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
DISTILBERT = BertNames(
    "transformer.layer.{}.",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)
MPNET = BertNames(
    "encoder.layer.{}.",
    ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "attention.attn.o",
    "attention.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)


# ---- reading -------------------------------------------------------------------------------------


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


def _heads(fields: FieldsOfConfig, heads: str, hidden: str) -> int:
    if fields.size(hidden) % fields.size(heads):
        fields.refuse(heads, f"a divisor of `{hidden}`={fields.size(hidden)}", fields.size(heads))
    return fields.size(heads)


def _without_first_positions(fields: FieldsOfConfig, config: BertConfig) -> BertConfig:
    rows = config.max_sequence_length
    if rows <= _FIRST_POSITION:
        fields.refuse("max_position_embeddings", f"above {_FIRST_POSITION}", rows)
    return dataclasses.replace(config, max_sequence_length=rows - _FIRST_POSITION)


def bert_sources(
    backbone: Backbone, names: BertNames, *, first_position: int = 0
) -> Iterator[WeightSource]:
    """Yields the source of every variable of a backbone of BERT's kind.

    Args:
        backbone: The layers.
        names: What the checkpoint calls their parts.
        first_position: Row of the position table that the first token takes.
    """
    embedder, encoder = backbone.token_embedder, backbone.encoder
    yield WeightSource(embedder.token_table, ("embeddings.word_embeddings.weight",))
    yield WeightSource(
        embedder.position_table,
        ("embeddings.position_embeddings.weight",),
        first_row=first_position,
    )
    if embedder.segment_table is not None:
        yield WeightSource(embedder.segment_table, ("embeddings.token_type_embeddings.weight",))
    yield from _norm("embeddings.LayerNorm", embedder.norm_gamma, embedder.norm_beta)
    if encoder.relative_buckets:
        yield WeightSource(encoder.relative_table, ("encoder.relative_attention_bias.weight",))
    for i, layer in enumerate(encoder.transformer_layers):
        prefix = names.layer.format(i)
        parts = tuple(prefix + part for part in names.query_key_value)
        yield from _linear(parts, layer.qkv_kernel, layer.qkv_bias)
        for part in ("attention_output", "intermediate", "output"):
            kernel, bias = getattr(layer, f"{part}_kernel"), getattr(layer, f"{part}_bias")
            yield from _linear((prefix + getattr(names, part),), kernel, bias)
        for part in ("attention_norm", "output_norm"):
            gamma, beta = getattr(layer, f"{part}_gamma"), getattr(layer, f"{part}_beta")
            yield from _norm(prefix + getattr(names, part), gamma, beta)


def _linear(
    names: tuple[str, ...], kernel: keras.Variable, bias: keras.Variable
) -> Iterator[WeightSource]:
    yield WeightSource(kernel, tuple(f"{name}.weight" for name in names), transposed=True)
    yield WeightSource(bias, tuple(f"{name}.bias" for name in names))


def _norm(name: str, gamma: keras.Variable, beta: keras.Variable) -> Iterator[WeightSource]:
    yield WeightSource(gamma, (f"{name}.weight",))
    yield WeightSource(beta, (f"{name}.bias",))


# ---- writing -------------------------------------------------------------------------------------


def write_bert_config(config: BertConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the `config.json` of a `BertModel`, with position biases of an `MPNetModel`.

    Raises:
        ConfigError: transformers has no model with such position biases, or segments.
    """
    rule = "None: transformers' models of one text have one segment"
    require(config.separator_id is None, "separator_id", rule, config.separator_id)
    if config.relative_buckets:
        return _mpnet_config(config, tokenizer)
    return {**_bert_config(config), "type_vocab_size": max(config.num_segments, 1)}


def _bert_config(config: BertConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "max_position_embeddings": config.max_sequence_length,
        "hidden_act": ACTIVATIONS_WRITTEN[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "layer_norm_eps": config.layer_norm_epsilon,
    }


def _mpnet_config(config: BertConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    for name, received, wanted in (
        ("num_segments", config.num_segments, 0),
        ("relative_buckets", config.relative_buckets, _MPNET_BUCKETS),
        ("relative_max_distance", config.relative_max_distance, _MPNET_MAX_DISTANCE),
        # It counts positions by the tokens that are not this one, wherever they stand.
        ("tokenizer.pad_id", tokenizer.pad_id, _MPNET_PAD_ID),
    ):
        require(
            received == wanted,
            name,
            f"{wanted} for transformers' MPNetModel, its only model of BERT's kind with relative"
            " positions",
            received,
        )
    first = _MPNET_PAD_ID + 1  # row of the first token's position
    return {
        **_bert_config(config),
        "model_type": "mpnet",
        "architectures": ["MPNetModel"],
        "max_position_embeddings": config.max_sequence_length + first,
        "relative_attention_num_buckets": config.relative_buckets,
    }


def _pooler(backbone: Backbone) -> Iterator[tuple[str, np.ndarray]]:
    """Nothing reads it; without it transformers warns that it is new and must be trained."""
    config: Any = backbone.config
    dtype = keras.ops.convert_to_numpy(backbone.token_embedder.norm_gamma).dtype
    if not config.relative_buckets and not config.num_segments:
        # A BertModel adds a segment's row to every token.
        yield _SEGMENTS, np.zeros((1, config.hidden_dim), dtype)
    yield "pooler.dense.weight", np.zeros((config.hidden_dim, config.hidden_dim), dtype)
    yield "pooler.dense.bias", np.zeros(config.hidden_dim, dtype)


_BERT_SIZES = {
    "vocab_size": (_WORDS, 0),
    "hidden_size": (_WORDS, 1),
    "max_position_embeddings": (_POSITIONS, 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
_WITH_SEGMENTS = {**_BERT_SIZES, "type_vocab_size": (_SEGMENTS, 0)}
_BERT_LAYERS = ("num_hidden_layers", "encoder.layer.")
_DPR = ("question_encoder.bert_model.", "ctx_encoder.bert_model.")

_ROBERTA = HuggingFaceFamily(
    _roberta,
    partial(bert_sources, names=BERT, first_position=_FIRST_POSITION),
    ("", "roberta."),
    _WORDS,
    _WITH_SEGMENTS,
    _BERT_LAYERS,
)

BERT_FAMILIES: dict[str, HuggingFaceFamily] = {
    "bert": HuggingFaceFamily(
        _bert,
        partial(bert_sources, names=BERT),
        ("", "bert.", "model."),
        _WORDS,
        _WITH_SEGMENTS,
        _BERT_LAYERS,
        unread=_pooler,
    ),
    "distilbert": HuggingFaceFamily(
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
    "mpnet": HuggingFaceFamily(
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
        unread=_pooler,
    ),
    "dpr": HuggingFaceFamily(
        _bert, partial(bert_sources, names=BERT), _DPR, _WORDS, _WITH_SEGMENTS, _BERT_LAYERS
    ),
}
