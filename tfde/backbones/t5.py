"""The encoder of T5: pre-norm Transformer layers with relative positions."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.functional import activate, check_activation, rms_norm
from tfde.backbones.lora import Matrix
from tfde.backbones.seeded_layer import arguments_of
from tfde.backbones.token_layout import PaddedLayout, TokenLayout
from tfde.backbones.token_table import TokenTable
from tfde.backbones.transformer import TransformerEncoder, TransformerLayer
from tfde.config.backbones import T5Config


@keras.saving.register_keras_serializable(package="tfde")
class T5TransformerLayer(TransformerLayer):
    """RMS norm, self-attention, residual; RMS norm, (gated) feed-forward network, residual.

    Source: Raffel et al. 2020, section 2.1; Shazeer 2020 for the gate.
    """

    def __init__(
        self,
        hidden_dim: int,
        intermediate_dim: int,
        *,
        num_heads: int,
        key_value_dim: int,
        dropout: float,
        activation: str,
        gated: bool,
        layer_norm_epsilon: float,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.key_value_dim = key_value_dim
        self.activation = check_activation(activation)
        self.gated = gated
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape: Any) -> None:
        """Creates the weights: [query | key | value] and [activated | gate] side by side."""
        hidden, inner = self.hidden_dim, self.intermediate_dim
        attention = self.num_heads * self.key_value_dim
        # Scores are not divided by the root of d, so the query starts smaller by that factor.
        query_deviation = (hidden * self.key_value_dim) ** -0.5
        deviations = (query_deviation, hidden**-0.5, hidden**-0.5)
        seeds = [next(self._seeds) for _ in deviations]

        def qkv_initializer(shape: Any, dtype: Any = None) -> tf.Tensor:
            parts = [
                keras.initializers.RandomNormal(0.0, deviation, seed=seed)
                for deviation, seed in zip(deviations, seeds, strict=True)
            ]
            return tf.concat([part((hidden, attention), dtype) for part in parts], axis=1)

        self._add("attention_norm_gamma", (hidden,), "ones")
        self._add("qkv_kernel", (hidden, 3 * attention), qkv_initializer)
        self._add_normal("attention_output_kernel", (attention, hidden))
        self._add("feedforward_norm_gamma", (hidden,), "ones")
        self._add_normal("intermediate_kernel", (hidden, (2 if self.gated else 1) * inner))
        self._add_normal("output_kernel", (inner, hidden))

    def matrices(self) -> dict[str, Matrix]:
        """Returns query, key and value apart, and what follows attention."""
        attention = self.num_heads * self.key_value_dim
        parts = {
            "query": Matrix("qkv_kernel", 0, attention),
            "key": Matrix("qkv_kernel", attention, attention),
            "value": Matrix("qkv_kernel", 2 * attention, attention),
            "attention_output": Matrix("attention_output_kernel", 0, self.hidden_dim),
            "intermediate": Matrix("intermediate_kernel", 0, self.intermediate_dim),
        }
        if self.gated:
            inner = self.intermediate_dim
            parts["gate"] = Matrix("intermediate_kernel", inner, inner)
        return {**parts, "output": Matrix("output_kernel", 0, self.hidden_dim)}

    def call(
        self,
        x: tf.Tensor,
        layout: TokenLayout | PaddedLayout,
        bias: tf.Tensor,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the tokens after this layer, (N, H), its queries and its keys."""
        qkv = self._product(self._norm(x, self.attention_norm_gamma, training), "qkv_kernel")
        # T5 does not scale: its weights were initialised for that.
        attended, query, key = self._attend(qkv, layout, bias, scale=1.0, training=training)
        x += self._drop(self._product(attended, "attention_output_kernel"), training)
        inner = self._norm(x, self.feedforward_norm_gamma, training)
        inner = self._product(inner, "intermediate_kernel")
        if self.gated:
            inner, gate = tf.split(inner, 2, axis=-1)
            inner = activate(self.activation, inner, training=training) * gate
        else:
            inner = activate(self.activation, inner, training=training)
        inner = self._product(self._drop(inner, training), "output_kernel")
        return x + self._drop(inner, training), query, key

    def _add_normal(self, name: str, shape: tuple[int, int]) -> None:
        deviation = shape[0] ** -0.5
        seed = next(self._seeds)
        self._add(name, shape, keras.initializers.RandomNormal(0.0, deviation, seed=seed))

    def _norm(self, x: tf.Tensor, gamma: keras.Variable, training: bool) -> tf.Tensor:
        return rms_norm(x, gamma.value, self.layer_norm_epsilon, training=training)


@keras.saving.register_keras_serializable(package="tfde")
class T5Encoder(TransformerEncoder):
    """A stack of T5's encoder layers.

    The relative position bias is computed once, from one table, and shared by all layers.

    Raises:
        ValueError: an unknown activation.

    Source: Raffel et al. 2020, section 2.1.
    """

    def __init__(
        self,
        num_layers: int,
        hidden_dim: int,
        *,
        num_heads: int,
        key_value_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        activation: str = "gelu_tanh",
        gated: bool = True,
        relative_buckets: int = 32,
        relative_max_distance: int = 128,
        layer_norm_epsilon: float = 1e-6,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.key_value_dim = key_value_dim
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.gated = gated
        self.relative_buckets = relative_buckets
        self.relative_max_distance = relative_max_distance
        self.layer_norm_epsilon = layer_norm_epsilon
        self._add_layers(T5TransformerLayer)

    def build(self, input_shape: Any) -> None:
        """Creates the position table, every Transformer layer's weights and the last norm."""
        deviation = self.hidden_dim**-0.5
        initializer = keras.initializers.RandomNormal(0.0, deviation, seed=next(self._seeds))
        self._add("relative_table", (self.relative_buckets, self.num_heads), initializer)
        for layer in self.transformer_layers:
            layer.build((None, self.hidden_dim))
        self._add("norm_gamma", (self.hidden_dim,), "ones")
        self._build_adapters()

    def _end(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        x = rms_norm(x, self.norm_gamma.value, self.layer_norm_epsilon, training=training)
        return self._drop(x, training)


def build_t5(
    config: T5Config, embedder: dict[str, Any], encoder: dict[str, Any]
) -> tuple[TokenTable, T5Encoder]:
    """Returns both layers of a T5 encoder; see `tfde.backbones.registry.Build`."""
    return (
        TokenTable(**arguments_of(TokenTable, config), deviation=1.0, **embedder),
        T5Encoder(**arguments_of(T5Encoder, config), **encoder),
    )
