"""What the encoders of BERT and T5 are both: a stack of layers over tokens without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.attention import attention, mask_bias
from tfde.backbones.lora import AdaptedLayer, enable_lora
from tfde.backbones.seeded_layer import SeededLayer, arguments_of
from tfde.backbones.token_layout import PaddedLayout, TokenLayout, token_layout


class EncoderStates(TypedDict):
    """What an encoder computed on its way, for distillation.

    Queries and keys are those that the attention scores are made of: softmax(Q K^T + bias) are
    the attention weights. They hold other tokens' values at padding, which must be left out.

    Attributes:
        sequence_output: (B, L, H); padding is zeros.
        queries: (B, A, L, d) of each layer.
        keys: (B, A, L, d) of each layer.
        hidden_states: (B, L, H) after each layer; padding is zeros.
        bias: What is added to the scores in every layer, broadcast to (B, A, L, L), float32.
    """

    sequence_output: tf.Tensor
    queries: list[tf.Tensor]
    keys: list[tf.Tensor]
    hidden_states: list[tf.Tensor]
    bias: tf.Tensor


class TransformerLayer(AdaptedLayer):
    """Base of one layer; its subclass says where norms stand and what the matrices are.

    Call arguments:
        x: Real tokens, (N, H) in the compute dtype.
        layout: Where they stand in the batch.
        bias: What is added to the attention scores, broadcast to (B, A, L, L), float32.

    Returns:
        The tokens after this layer, (N, H), and its queries and keys, (B, A, L, d) each.
    """

    def _attend(
        self,
        qkv: tf.Tensor,
        layout: TokenLayout | PaddedLayout,
        bias: tf.Tensor,
        *,
        scale: float,
        training: bool,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what tokens attend to, (N, A*d), queries times `scale`, and keys."""
        query, key, value = layout.split_heads(qkv)
        if scale != 1.0:
            query *= scale
        keep = None
        if training and self.rounded_dropout:
            batch, heads, length, _ = tf.unstack(tf.shape(query))
            keep = self._kept(tf.stack([batch, heads, length, length]))
        dropout = self.rounded_dropout
        attended = attention(query, key, value, bias, training=training, dropout=dropout, keep=keep)
        return layout.merge_heads(attended), query, key


class TransformerEncoder(SeededLayer):
    """Base of a stack of Transformer layers as one layer; `transformer_layers` holds them.

    Call arguments:
        x: Embedded tokens, (B, L, H).
        padding_mask: (B, L) int32, 1 = real token.
        return_states: Whether queries, keys and hidden states of each layer are wanted too.
        layers: First layer, and the one after the last, that are applied; `None` for all. What
            follows the last layer (T5's norm) follows only where that one is applied.
        computed: (B, L) int32, 1 = a place that is computed, real tokens and perhaps others that
            attend to these and are attended to by none; `None`: the real tokens.

    Returns:
        sequence_output, (B, L, H) in the compute dtype, zeros at padding, which changes nothing at
        real tokens; or the dictionary `EncoderStates`.
    """

    num_layers: int
    hidden_dim: int
    num_heads: int
    relative_max_distance: int
    relative_table: Any = None
    transformer_layers: Sequence[TransformerLayer]

    def _add_layers(self, kind: type[TransformerLayer]) -> None:
        """Makes `num_layers` layers of a class, whose sizes are those of the encoder."""
        sizes = arguments_of(kind, self)
        self.transformer_layers = [
            kind(
                **sizes,
                seed=next(self._seeds),
                dtype=self.dtype_policy,
                name=f"transformer_layer_{i}",
            )
            for i in range(self.num_layers)
        ]
        for layer in self.transformer_layers:
            # TensorFlow's checkpoints and SavedModels find attributes, not a Keras layer's lists.
            setattr(self, layer.name, layer)

    def _build_adapters(self) -> None:
        """Puts adapters beside the matrices of layers that are built, if there are to be any."""
        if self.lora is not None:
            enable_lora(self, self.lora)

    def call(
        self,
        x: tf.Tensor,
        padding_mask: tf.Tensor,
        training: bool | None = None,
        return_states: bool = False,
        layers: tuple[int, int] | None = None,
        computed: tf.Tensor | None = None,
    ) -> tf.Tensor | EncoderStates:
        """Returns the sequence output, (B, L, H), or everything on the way to it."""
        training = bool(training)
        layout = token_layout(padding_mask if computed is None else computed, self.num_heads)
        bias = mask_bias(padding_mask)
        if self.relative_table is not None:
            bias += relative_position_bias(
                self.relative_table.value,
                tf.shape(padding_mask)[1],
                max_distance=self.relative_max_distance,
            )
        shape = x.shape
        x = layout.pack(tf.cast(x, self.compute_dtype))
        queries, keys, hidden_states = [], [], []
        first, end = layers or (0, len(self.transformer_layers))
        for layer in self.transformer_layers[first:end]:
            x, query, key = layer(x, layout=layout, bias=bias, training=training)
            if return_states:
                queries.append(query)
                keys.append(key)
                hidden_states.append(layout.unpack(x))
        if end == len(self.transformer_layers):
            x = self._end(x, training)
        output = tf.ensure_shape(layout.unpack(x), shape)
        if not return_states:
            return output
        return EncoderStates(
            sequence_output=output,
            queries=queries,
            keys=keys,
            hidden_states=hidden_states,
            bias=bias,
        )

    def compute_output_spec(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the shape and dtype of what `call` returns, without tracing every layer."""
        if kwargs.get("return_states"):
            return super().compute_output_spec(x, *args, **kwargs)
        return keras.KerasTensor(x.shape, self.compute_dtype)

    def _end(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return x


def relative_position_bias(
    table: tf.Tensor, length: int | tf.Tensor, *, max_distance: int
) -> tf.Tensor:
    """Returns the bias of a text of `length` tokens, (1, A, L, L) float32.

    Args:
        table: One number a bucket and head, (buckets, A); the first half of the buckets is for
            keys before the query and the query itself, the other half for those after it.
        length: L.
        max_distance: From here on all distances share the last bucket.

    Source: Raffel et al. 2020, section 2.1.
    """
    num_buckets = table.shape[0]
    positions = tf.range(length)
    distance = positions[None, :] - positions[:, None]  # key minus query
    buckets = distance_buckets(num_buckets // 2, max_distance)
    bucket = tf.gather(buckets, tf.minimum(tf.abs(distance), max_distance))
    bucket += tf.where(distance > 0, num_buckets // 2, 0)
    bias = tf.gather(tf.cast(table, tf.float32), bucket)  # (L, L, A)
    return tf.transpose(bias, (2, 0, 1))[None]


def distance_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance 0 .. max_distance, (max_distance + 1,) int32.

    The first half of the buckets hold one distance each, the others grow with the logarithm;
    the last takes everything from `max_distance` on. Computed in float32, because a distance on
    the border of two buckets must fall on the side where the pre-trained models had it.

    Source: Raffel et al. 2020, section 2.1; the formula as in their Mesh TensorFlow.
    """
    exact = num_buckets // 2
    distance = np.arange(max_distance + 1)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    ratio = ratio / np.float32(np.log(max_distance / exact)) * np.float32(num_buckets - exact)
    large = np.minimum(exact + ratio.astype(np.int32), num_buckets - 1)
    return np.where(distance < exact, distance, large).astype(np.int32)
