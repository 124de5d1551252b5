"""BERT: token embedder and encoder of post-norm Transformer layers."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.functional import activate, check_activation, layer_norm
from tfde.backbones.lora import Matrix
from tfde.backbones.seeded_layer import SeededLayer, arguments_of
from tfde.backbones.token_layout import PaddedLayout, TokenLayout
from tfde.backbones.transformer import TransformerEncoder, TransformerLayer
from tfde.config.backbones import BertConfig


@keras.saving.register_keras_serializable(package="tfde")
class BertTokenEmbedder(SeededLayer):
    """Word + position + segment embedding, layer norm, dropout.

    Call arguments:
        token_ids: (B, L) int32, L at most `max_sequence_length`.
        segment_ids: (B, L) int32, below `num_segments`; `None` for segment 0 everywhere, or, with
            `separator_id`, 1 behind the first token of that id. A
            backbone without segments (DistilBERT, MPNet) or with one (RoBERTa) has no use for it.

    Returns:
        (B, L, H) in the compute dtype.

    Raises:
        ValueError: L is known beforehand and more than `max_sequence_length`.

    Source: Devlin et al. 2019, section 3 and Figure 2.
    """

    segment_table: keras.Variable | None = None

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        *,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        separator_id: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.separator_id = separator_id
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape: Any) -> None:
        """Creates the three tables and the layer norm."""
        for name, rows in (
            ("token_table", self.vocabulary_size),
            ("position_table", self.max_sequence_length),
            ("segment_table", self.num_segments),
        ):
            if not rows:
                continue
            initializer = keras.initializers.TruncatedNormal(0.0, 0.02, seed=next(self._seeds))
            shape = (rows, self.hidden_dim)
            self._add(name, shape, initializer)
        self._add("norm_gamma", (self.hidden_dim,), "ones")
        self._add("norm_beta", (self.hidden_dim,), "zeros")

    def call(
        self,
        token_ids: tf.Tensor,
        segment_ids: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Returns the embedded tokens, (B, L, H)."""
        self._check_length(token_ids)
        if segment_ids is None and self.separator_id is not None:
            separators = tf.cast(token_ids == self.separator_id, tf.int32)
            segment_ids = tf.minimum(tf.cumsum(separators, axis=1, exclusive=True), 1)
        offset = tf.cast(self.position_table.value[: tf.shape(token_ids)[1]], tf.float32)
        if self.segment_table is not None and (segment_ids is None or self.num_segments == 1):
            offset += tf.cast(self.segment_table.value[0], tf.float32)
        x = self._rows(self.token_table, token_ids) + offset
        if self.segment_table is not None and segment_ids is not None and self.num_segments > 1:
            x += self._rows(self.segment_table, segment_ids)
        gamma, beta = self.norm_gamma.value, self.norm_beta.value
        x = layer_norm(x, gamma, beta, self.layer_norm_epsilon, training=bool(training))
        x = tf.cast(x, self.compute_dtype)
        return self._drop(x, training)

    def compute_output_spec(self, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the shape and dtype of what `call` returns, without tracing it."""
        self._check_length(token_ids)
        return keras.KerasTensor((*token_ids.shape, self.hidden_dim), self.compute_dtype)

    def _check_length(self, token_ids: Any) -> None:
        length = token_ids.shape[1]
        if length is not None and length > self.max_sequence_length:
            raise ValueError(
                "`token_ids` must have at most `max_sequence_length` positions"
                f" ({self.max_sequence_length}). Received: L={length}"
            )

    def _rows(self, table: keras.Variable, ids: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(table.value, ids), tf.float32)


@keras.saving.register_keras_serializable(package="tfde")
class BertTransformerLayer(TransformerLayer):
    """Self-attention and feed-forward network, each with a residual and then a layer norm.

    Source: Vaswani et al. 2017, equation 1; Devlin et al. 2019, section 3.
    """

    def __init__(
        self,
        hidden_dim: int,
        intermediate_dim: int,
        *,
        num_heads: int,
        dropout: float,
        activation: str,
        layer_norm_epsilon: float,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.activation = check_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape: Any) -> None:
        """Creates the weights; query, key and value lie side by side in `qkv_kernel`."""
        hidden, inner = self.hidden_dim, self.intermediate_dim
        for part, rows, columns in (
            ("qkv", hidden, 3 * hidden),
            ("attention_output", hidden, hidden),
            ("intermediate", hidden, inner),
            ("output", inner, hidden),
        ):
            initializer = keras.initializers.TruncatedNormal(0.0, 0.02, seed=next(self._seeds))
            self._add(f"{part}_kernel", (rows, columns), initializer)
            self._add(f"{part}_bias", (columns,), "zeros")
        for part in ("attention_norm", "output_norm"):
            self._add(f"{part}_gamma", (hidden,), "ones")
            self._add(f"{part}_beta", (hidden,), "zeros")

    def matrices(self) -> dict[str, Matrix]:
        """Returns query, key and value apart, and the other three."""
        hidden = self.hidden_dim
        return {
            "query": Matrix("qkv_kernel", 0, hidden),
            "key": Matrix("qkv_kernel", hidden, hidden),
            "value": Matrix("qkv_kernel", 2 * hidden, hidden),
            "attention_output": Matrix("attention_output_kernel", 0, hidden),
            "intermediate": Matrix("intermediate_kernel", 0, self.intermediate_dim),
            "output": Matrix("output_kernel", 0, hidden),
        }

    def call(
        self,
        x: tf.Tensor,
        layout: TokenLayout | PaddedLayout,
        bias: tf.Tensor,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the tokens after this layer, (N, H), its queries and its keys."""
        scale = 1.0 / math.sqrt(self.hidden_dim // self.num_heads)
        qkv = self._dense(x, "qkv")
        attended, query, key = self._attend(qkv, layout, bias, scale=scale, training=training)
        attended = self._drop(self._dense(attended, "attention_output"), training)
        x = self._norm(x + attended, "attention", training)
        inner = activate(self.activation, self._dense(x, "intermediate"), training=training)
        inner = self._drop(self._dense(inner, "output"), training)
        return self._norm(x + inner, "output", training), query, key

    def _dense(self, x: tf.Tensor, part: str) -> tf.Tensor:
        bias = tf.cast(getattr(self, f"{part}_bias").value, x.dtype)
        return tf.nn.bias_add(self._product(x, f"{part}_kernel"), bias)

    def _norm(self, x: tf.Tensor, part: str, training: bool) -> tf.Tensor:
        gamma = getattr(self, f"{part}_norm_gamma").value
        beta = getattr(self, f"{part}_norm_beta").value
        return layer_norm(x, gamma, beta, self.layer_norm_epsilon, training=training)


@keras.saving.register_keras_serializable(package="tfde")
class BertEncoder(TransformerEncoder):
    """A stack of BERT's Transformer layers.

    Raises:
        ValueError: an unknown activation.

    Source: Devlin et al. 2019, section 3.
    """

    def __init__(
        self,
        num_layers: int,
        hidden_dim: int,
        *,
        num_heads: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        relative_buckets: int = 0,
        relative_max_distance: int = 128,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.relative_buckets = relative_buckets
        self.relative_max_distance = relative_max_distance
        self._add_layers(BertTransformerLayer)

    def build(self, input_shape: Any) -> None:
        """Creates the weights of every Transformer layer and, if there is one, the table."""
        for layer in self.transformer_layers:
            layer.build((None, self.hidden_dim))
        if self.relative_buckets:
            initializer = keras.initializers.TruncatedNormal(0.0, 0.02, seed=next(self._seeds))
            self._add("relative_table", (self.relative_buckets, self.num_heads), initializer)
        self._build_adapters()


def build_bert(
    config: BertConfig, embedder: dict[str, Any], encoder: dict[str, Any]
) -> tuple[BertTokenEmbedder, BertEncoder]:
    """Returns both layers of a BERT or of its kin; see `tfde.backbones.registry.Build`."""
    return (
        BertTokenEmbedder(**arguments_of(BertTokenEmbedder, config), **embedder),
        BertEncoder(**arguments_of(BertEncoder, config), **encoder),
    )
