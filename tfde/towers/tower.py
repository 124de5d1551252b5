"""One tower: backbone, pooling, projection and unit norm as a functional model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfde.config import model as config
from tfde.layers.keras_layer import KerasPooling
from tfde.layers.pooling import Pooling
from tfde.layers.projection import UnitNorm


@dataclass(frozen=True)
class TowerParts:
    """The three parts that towers share or have apart (Dong et al. 2022, Figure 1).

    Args:
        token_embedder: `token_ids (B, L)` -> `(B, L, H)`.
        encoder: `(B, L, H)`, `padding_mask (B, L)` -> `sequence_output (B, L, H)`.
        projection: `(B, H)` -> `(B, D)`, or `None` for none.
    """

    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer
    projection: keras.layers.Layer | None


def build_tower(
    parts: TowerParts,
    *,
    pooling: Sequence[config.Pooling] | str,
    normalize: bool,
    name: str,
    skipped_tokens: int = 0,
) -> keras.Model:
    """Returns the functional model of a tower.

    Args:
        parts: Layers; those already used by another tower are shared with it.
        pooling: How token vectors become one; several poolings are put side by side. Or a Keras
            layer for it, as `KerasPooling` takes it.
        normalize: Whether embeddings are scaled to unit length.
        name: Name of the model.
        skipped_tokens: So many tokens at the beginning of a text do not count in pooling.

    Returns:
        A `keras.Model` from `{"token_ids", "padding_mask"}`, both (B, L) int32 with mask 1 = real
        token, to embeddings (B, D) float32.
    """
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
    sequence_output = parts.encoder(parts.token_embedder(token_ids), padding_mask)
    kind: Any = KerasPooling if isinstance(pooling, str) else Pooling
    pool = kind(pooling, skipped_tokens=skipped_tokens, name="pooling")
    x = pool(sequence_output, padding_mask)
    if parts.projection is not None:
        x = parts.projection(x)
    if normalize:
        x = UnitNorm(name="unit_norm")(x)
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    return keras.Model(inputs, x, name=name)
