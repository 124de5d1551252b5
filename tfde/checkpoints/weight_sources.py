"""Which arrays of a PyTorch checkpoint make up which variable; read in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import numpy as np

from tfde.backbones.backbone import Backbone


@dataclass(frozen=True)
class WeightSource:
    """Where the values of a variable stand.

    Args:
        variable: The variable.
        names: Arrays that lie side by side in it, by their names without a prefix.
        transposed: PyTorch's linear layers hold (out, in), ours (in, out).
        first_row: Rows before it belong to no text: RoBERTa counts positions from 2.
    """

    variable: keras.Variable
    names: tuple[str, ...]
    transposed: bool = False
    first_row: int = 0

    def join(self, read: Callable[[str], np.ndarray]) -> np.ndarray:
        """Returns the variable's value from the arrays."""
        arrays = [read(name)[self.first_row :] for name in self.names]
        if self.transposed:
            arrays = [array.T for array in arrays]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)

    def shape(self) -> tuple[int, ...]:
        """Returns the shape that each of the arrays must have."""
        *rows, columns = self.variable.shape
        if rows:
            rows[0] += self.first_row
        shape = (*rows, columns // len(self.names))
        return shape[::-1] if self.transposed else shape

    def split(self) -> dict[str, np.ndarray]:
        """Returns the arrays from the variable's value; rows before `first_row` are zeros."""
        value = keras.ops.convert_to_numpy(self.variable)
        if self.first_row:
            value = np.pad(value, ((self.first_row, 0), (0, 0)))
        arrays = np.split(value, len(self.names), axis=-1)
        return {
            name: np.ascontiguousarray(array.T if self.transposed else array)
            for name, array in zip(self.names, arrays, strict=True)
        }


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


def _linear(
    names: tuple[str, ...], kernel: keras.Variable, bias: keras.Variable
) -> Iterator[WeightSource]:
    yield WeightSource(kernel, tuple(f"{name}.weight" for name in names), transposed=True)
    yield WeightSource(bias, tuple(f"{name}.bias" for name in names))


def _norm(name: str, gamma: keras.Variable, beta: keras.Variable) -> Iterator[WeightSource]:
    yield WeightSource(gamma, (f"{name}.weight",))
    yield WeightSource(beta, (f"{name}.bias",))
