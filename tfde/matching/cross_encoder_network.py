"""The network of a cross-encoder: backbone, pooling, head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.backbone import Backbone
from tfde.backbones.transformer import EncoderStates
from tfde.config.model import BertConfig, CrossEncoderConfig, DenseConfig
from tfde.layers.pooling import Pooling
from tfde.layers.projection import Projection
from tfde.towers.weights import named_weights

_WITH_WEIGHTS = ("token_embedder", "encoder", "hidden", "classifier")


@dataclass(frozen=True)
class ScorerParts:
    """The layers.

    Args:
        token_embedder: `token_ids`, for BERT's kind with `segment_ids`, (B, L) -> `(B, L, H)`.
        encoder: `(B, L, H)`, `padding_mask (B, L)` -> `sequence_output (B, L, H)`.
        pooling: `sequence_output`, `padding_mask` -> `(B, H)`.
        hidden: `(B, H)` -> `(B, H)`.
        dropout: On `(B, H)`.
        classifier: `(B, H)` -> logits `(B, N)`.
        segments: Whether the token embedder takes segment ids.
    """

    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer
    pooling: keras.layers.Layer
    hidden: Projection
    dropout: keras.layers.Layer
    classifier: Projection
    segments: bool

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        weights: dict[str, keras.Variable] = {}
        for part in _WITH_WEIGHTS:
            weights.update(named_weights(part, getattr(self, part)))
        return weights

    def score(
        self,
        inputs: Mapping[str, tf.Tensor],
        *,
        training: bool | None = None,
        return_states: bool = False,
    ) -> tuple[tf.Tensor, EncoderStates | None]:
        """Returns the logits, (B, N) float32, and if asked all that the encoder computed.

        It is the network of `build_scorer` and, with states, the same computation for training.

        Args:
            inputs: As the functional model takes them.
            training: Whether dropout is on.
            return_states: Whether queries, keys and hidden states are wanted.
        """
        segments = (inputs["segment_ids"],) if self.segments else ()
        embedded = self.token_embedder(inputs["token_ids"], *segments, training=training)
        mask = inputs["padding_mask"]
        options: dict[str, Any] = {"return_states": True} if return_states else {}
        output = self.encoder(embedded, mask, training=training, **options)
        states = output if return_states else None
        pooled = self.pooling(output["sequence_output"] if return_states else output, mask)
        dropped = self.dropout(self.hidden(pooled), training=training)
        return self.classifier(dropped), states


def build_scorer(
    backbone: Backbone, config: CrossEncoderConfig, *, seed: int | None = None
) -> tuple[keras.Model, ScorerParts]:
    """Returns the functional model that scores pairs, and its parts.

    Args:
        backbone: Layers with their weights; `config.backbone` describes them.
        config: What the head is like; its weights are random.
        seed: Seed of the head's weights and dropout; `None` takes Keras's global seed.

    Returns:
        A `keras.Model` from `{"token_ids", "segment_ids", "padding_mask"}`, (B, L) int32 with mask
        1 = real token, to logits (B, N) float32; and the layers in it. T5 has no segments, nor
        their ids as an input.

    Source: Nogueira and Cho 2019, section 3.2 (a single layer on BERT's [CLS] vector after its
    pooler); Li et al. 2021, section 4.3.1 (the mean); hidden layers as in the sequence
    classification models of transformers.
    """
    segments = isinstance(config.backbone, BertConfig)
    names = ["token_ids", *(["segment_ids"] if segments else []), "padding_mask"]
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    hidden_dim = config.backbone.hidden_dim
    parts = ScorerParts(
        token_embedder=backbone.token_embedder,
        encoder=backbone.encoder,
        pooling=Pooling((config.pooling,), name="pooling"),
        hidden=Projection(
            (DenseConfig(hidden_dim, use_bias=True, activation=config.hidden_activation),),
            seed=seed,
            name="hidden",
        ),
        dropout=keras.layers.Dropout(config.dropout, seed=seed, dtype="float32", name="dropout"),
        classifier=Projection(
            (DenseConfig(config.num_labels, use_bias=True),),
            seed=None if seed is None else seed + 1,
            name="classifier",
        ),
        segments=segments,
    )
    logits, _ = parts.score(inputs)
    return keras.Model(inputs, logits, name="scorer"), parts
