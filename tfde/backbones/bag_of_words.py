"""Bag of words: a two-layer network on the mean of token embeddings."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.functional import shape_of
from tfde.backbones.lora import AdaptedLayer, Matrix, enable_lora
from tfde.backbones.seeded_layer import arguments_of
from tfde.backbones.token_table import TokenTable
from tfde.config.backbones import BagOfWordsConfig
from tfde.layers.pooling import Pooling


@keras.saving.register_keras_serializable(package="tfde")
class BagOfWordsEncoder(AdaptedLayer):
    """The mean over real tokens, then two dense tanh layers.

    A text has one vector here, not one a token. It is repeated at all L positions, so that the
    encoder has the same shape as the others and any pooling of it yields that vector.

    Call arguments:
        x: Embedded tokens, (B, L, E).
        padding_mask: (B, L) int32, 1 = real token.

    Returns:
        sequence_output, (B, L, H) in the compute dtype, equal at all positions of a row.

    Source: Chang et al. 2020, section 4.4.
    """

    def __init__(
        self,
        embedding_dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self._mean = Pooling(("mean",), name="mean")

    def build(self, input_shape: Any) -> None:
        """Creates the weights of the two dense layers."""
        rows = self.embedding_dim
        for i in range(2):
            initializer = keras.initializers.GlorotUniform(seed=next(self._seeds))
            self._add(f"kernel_{i}", (rows, self.hidden_dim), initializer)
            self._add(f"bias_{i}", (self.hidden_dim,), "zeros")
            rows = self.hidden_dim
        if self.lora is not None:
            enable_lora(self, self.lora)

    def matrices(self) -> dict[str, Matrix]:
        """Returns the matrices of both dense layers."""
        return {f"dense_{i}": Matrix(f"kernel_{i}", 0, self.hidden_dim) for i in range(2)}

    def call(
        self, x: tf.Tensor, padding_mask: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """Returns the text's vector at every position, (B, L, H)."""
        length = shape_of(x)[1]
        x = tf.cast(self._mean(x, padding_mask), self.compute_dtype)
        for i, bias in enumerate((self.bias_0, self.bias_1)):
            x = self._product(x, f"kernel_{i}")
            x = tf.tanh(tf.nn.bias_add(x, tf.cast(bias.value, x.dtype)))
            x = self._drop(x, training)
        return tf.repeat(x[:, None, :], length, axis=1)


def build_bag_of_words(
    config: BagOfWordsConfig, embedder: dict[str, Any], encoder: dict[str, Any]
) -> tuple[TokenTable, BagOfWordsEncoder]:
    """Returns both layers of a bag of words; see `tfde.backbones.registry.Build`."""
    table = TokenTable(
        config.vocabulary_size,
        config.embedding_dim,
        deviation=config.embedding_dim**-0.5,
        dropout=config.dropout,
        **embedder,
    )
    return table, BagOfWordsEncoder(**arguments_of(BagOfWordsEncoder, config), **encoder)
