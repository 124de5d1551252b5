"""A backbone: the two layers that every tower starts with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.bag_of_words import BagOfWordsEncoder
from tfde.backbones.bert import BertEncoder, BertTokenEmbedder
from tfde.backbones.functional import seed_stream
from tfde.backbones.seeded_layer import SeededLayer, zero_weights
from tfde.backbones.t5 import T5Encoder
from tfde.config.model import BackboneConfig, BagOfWordsConfig, BertConfig, T5Config
from tfde.errors import require


@dataclass(frozen=True)
class Backbone:
    """Everything below pooling, as two Keras layers that already have their weights.

    Args:
        config: The sizes.
        token_embedder: `token_ids (B, L) int32` -> `(B, L, H)`: all below the first Transformer
            layer.
        encoder: `(B, L, H)`, `padding_mask (B, L) int32` -> `sequence_output (B, L, H)`.
    """

    config: BackboneConfig
    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer


def build_backbone(
    config: BackboneConfig,
    *,
    name_prefix: str = "",
    seed: int | None = None,
    dtype: str | None = None,
) -> Backbone:
    """Returns a backbone with random weights.

    Args:
        config: The sizes.
        name_prefix: Put before the names of the two layers.
        seed: Seed of weights and dropout; `None` takes Keras's global seed.
        dtype: Keras dtype policy, such as `mixed_bfloat16` (weights in float32) or `bfloat16`
            (weights too, in half the memory); `None` takes Keras's current one.

    Raises:
        ConfigError: an unknown dtype policy.
    """
    seeds = seed_stream(seed)
    policy = _dtype_policy(dtype)
    embedder_args: dict[str, Any] = {
        "seed": next(seeds),
        "name": f"{name_prefix}token_embedder",
        "dtype": policy,
    }
    encoder_args: dict[str, Any] = {
        "seed": next(seeds),
        "name": f"{name_prefix}encoder",
        "dtype": policy,
    }
    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer
    match config:
        case T5Config():
            token_embedder = TokenTable(
                config.vocabulary_size,
                config.hidden_dim,
                deviation=1.0,
                dropout=config.dropout,
                **embedder_args,
            )
            encoder = T5Encoder(
                config.num_layers,
                config.hidden_dim,
                num_heads=config.num_heads,
                key_value_dim=config.key_value_dim,
                intermediate_dim=config.intermediate_dim,
                dropout=config.dropout,
                activation=config.activation,
                gated=config.gated,
                relative_buckets=config.relative_buckets,
                relative_max_distance=config.relative_max_distance,
                layer_norm_epsilon=config.layer_norm_epsilon,
                **encoder_args,
            )
        case BertConfig():
            token_embedder = BertTokenEmbedder(
                config.vocabulary_size,
                config.hidden_dim,
                max_sequence_length=config.max_sequence_length,
                num_segments=config.num_segments,
                dropout=config.dropout,
                layer_norm_epsilon=config.layer_norm_epsilon,
                **embedder_args,
            )
            encoder = BertEncoder(
                config.num_layers,
                config.hidden_dim,
                num_heads=config.num_heads,
                intermediate_dim=config.intermediate_dim,
                dropout=config.dropout,
                activation=config.activation,
                layer_norm_epsilon=config.layer_norm_epsilon,
                relative_buckets=config.relative_buckets,
                relative_max_distance=config.relative_max_distance,
                **encoder_args,
            )
        case BagOfWordsConfig():
            token_embedder = TokenTable(
                config.vocabulary_size,
                config.embedding_dim,
                deviation=config.embedding_dim**-0.5,
                dropout=config.dropout,
                **embedder_args,
            )
            encoder = BagOfWordsEncoder(
                config.embedding_dim, config.hidden_dim, dropout=config.dropout, **encoder_args
            )
    token_embedder.build((None, None))
    encoder.build((None, None, None))
    return Backbone(config, token_embedder, encoder)


def copy_backbone(
    backbone: Backbone, *, name_prefix: str = "", seed: int | None = None
) -> Backbone:
    """Returns a second set of layers with equal weights, which train.

    Args:
        backbone: What to copy.
        name_prefix: Put before the names of the two new layers.
        seed: Seed of the copy's dropout; `None` takes Keras's global seed.
    """
    seeds = seed_stream(seed)
    layers = []
    for layer, name in ((backbone.token_embedder, "token_embedder"), (backbone.encoder, "encoder")):
        changed = {"name": name_prefix + name, "seed": next(seeds), "trainable": True}
        config = {**layer.get_config(), **changed}
        copy = type(layer).from_config(config)
        with zero_weights():
            copy.build((None, None, None))
        for source, target in zip(layer.weights, copy.weights, strict=True):
            target.assign(source)
        layers.append(copy)
    return Backbone(backbone.config, *layers)


def cut_backbone(backbone: Backbone, num_layers: int) -> Backbone:
    """Returns a backbone of the first layers of another, with its weights.

    Args:
        backbone: BERT's kind or T5's.
        num_layers: How many layers are kept.

    Raises:
        ConfigError: there are not so many, or the backbone has no layers.
    """
    config = backbone.config
    layers = getattr(config, "num_layers", 0)
    require(1 <= num_layers <= layers, "num_layers", f"in [1, {layers}]", num_layers)
    with zero_weights():
        cut = build_backbone(
            dataclasses.replace(config, num_layers=num_layers),  # type: ignore[arg-type]
            dtype=backbone.encoder.dtype_policy.name,
        )
    for source, target in (
        (backbone.token_embedder, cut.token_embedder),
        (backbone.encoder, cut.encoder),
    ):
        found = {_name_in_layer(weight): weight for weight in source.weights}
        for weight in target.weights:
            weight.assign(found[_name_in_layer(weight)])
    return cut


def _name_in_layer(weight: keras.Variable) -> str:
    return str(weight.path.partition("/")[2])


def _dtype_policy(name: str | None) -> keras.DTypePolicy:
    names = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
    chosen = keras.config.dtype_policy().name if name is None else name
    require(chosen in names, "dtype", f"{', '.join(names[:-1])} or {names[-1]}", chosen)
    return keras.dtype_policies.get(chosen)


@keras.saving.register_keras_serializable(package="tfde")
class TokenTable(SeededLayer):
    """A table of token embeddings, then dropout.

    Args:
        vocabulary_size: Rows of the table.
        hidden_dim: Its columns, H.
        deviation: Standard deviation of the random weights.
        dropout: Rate.
        seed: Seed of weights and dropout; `None` takes Keras's global seed.

    Call arguments:
        token_ids: (B, L) int32.

    Returns:
        (B, L, H) in the compute dtype.

    Source: Raffel et al. 2020, section 2.1 (T5); Chang et al. 2020, section 4.4 (bag of words).
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        *,
        deviation: float,
        dropout: float,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.deviation = deviation

    def build(self, input_shape: Any) -> None:
        """Creates `token_table` (V, H)."""
        initializer = keras.initializers.RandomNormal(0.0, self.deviation, seed=next(self._seeds))
        self._add("token_table", (self.vocabulary_size, self.hidden_dim), initializer)

    def call(self, token_ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the embedded tokens, (B, L, H)."""
        x = tf.cast(tf.gather(self.token_table.value, token_ids), self.compute_dtype)
        return self._drop(x, training)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "deviation": self.deviation,
        }
