"""BERT and its kin in keras-hub's presets: DistilBERT, RoBERTa, XLM-RoBERTa."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tfde.checkpoints.families.family import (
    FieldsOfConfig,
    KerasHubFamily,
    StoredVariable,
    names_of,
    numbered,
)
from tfde.config.backbones import Activation, BertConfig


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
        yield StoredVariable("token_embedder", attribute, names_of(layer), (length, "hidden_dim"))
    for index, attribute in enumerate(("norm_gamma", "norm_beta")):
        names = names_of("layer_normalization", index=index)
        yield StoredVariable("token_embedder", attribute, names, ("hidden_dim",))
    heads = ("num_heads", "hidden_dim / num_heads")
    for i in range(config.num_layers):
        prefix = f"{numbered('transformer_encoder', i)}/"
        attention = f"{prefix}_self_attention_layer/"
        parts = [f"{attention}{part}_dense" for part in ("query", "key", "value")]
        yield StoredVariable(i, "qkv_kernel", names_of(*parts), ("hidden_dim", *heads))
        yield StoredVariable(i, "qkv_bias", names_of(*parts, index=1), heads)
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
                names = names_of(prefix + theirs, index=index)
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


def _heads(fields: FieldsOfConfig) -> int:
    heads, hidden = fields.size("num_heads"), fields.size("hidden_dim")
    if hidden % heads:
        fields.refuse("num_heads", f"a divisor of `hidden_dim`={hidden}", heads)
    return heads


BERT_KERAS_HUB_FAMILIES: dict[str, KerasHubFamily] = {
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
}
