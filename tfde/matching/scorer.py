"""The network of a cross-encoder: backbone, first token, head."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from tfde.backbones.backbone import Backbone
from tfde.config import CrossEncoderConfig, DenseConfig
from tfde.layers.pooling import Pooling
from tfde.layers.projection import Projection
from tfde.towers.weights import named_weights


@dataclass(frozen=True)
class ScorerParts:
    """The layers with weights.

    Args:
        token_embedder: `token_ids`, `segment_ids` (B, L) -> `(B, L, H)`.
        encoder: `(B, L, H)`, `padding_mask (B, L)` -> `sequence_output (B, L, H)`.
        hidden: First token `(B, H)` -> `(B, H)`.
        classifier: `(B, H)` -> logits `(B, N)`.
    """

    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer
    hidden: Projection
    classifier: Projection

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        weights: dict[str, keras.Variable] = {}
        for part, layer in vars(self).items():
            weights.update(named_weights(part, layer))
        return weights


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
        1 = real token, to logits (B, N) float32; and the layers in it.

    Source: Nogueira and Cho 2019, section 3.2 (a single layer on BERT's [CLS] vector after its
    pooler); hidden layers as in the sequence classification models of transformers.
    """
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    hidden_dim = config.backbone.hidden_dim
    parts = ScorerParts(
        backbone.token_embedder,
        backbone.encoder,
        Projection(
            (DenseConfig(hidden_dim, use_bias=True, activation=config.hidden_activation),),
            seed=seed,
            name="hidden",
        ),
        Projection(
            (DenseConfig(config.num_labels, use_bias=True),),
            seed=None if seed is None else seed + 1,
            name="classifier",
        ),
    )
    embedded = parts.token_embedder(inputs["token_ids"], inputs["segment_ids"])
    sequence_output = parts.encoder(embedded, inputs["padding_mask"])
    first = Pooling(("first",), name="pooling")(sequence_output, inputs["padding_mask"])
    hidden = parts.hidden(first)
    dropped = keras.layers.Dropout(config.dropout, seed=seed, dtype="float32", name="dropout")(
        hidden
    )
    return keras.Model(inputs, parts.classifier(dropped), name="scorer"), parts
