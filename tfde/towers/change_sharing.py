"""A trained dual encoder goes on with towers that share less."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfde.backbones.backbone import Backbone, copy_backbone
from tfde.config.lora import LoraConfig
from tfde.config.model import DenseConfig, Sharing
from tfde.errors import ConfigError
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.sharing import PARTS


def reshare(
    model: DualEncoder,
    sharing: str | Sharing | Mapping[str, Any] | None,
    *,
    embedding_dim: int | None = None,
) -> DualEncoder:
    """Returns a dual encoder with the weights of another one, whose towers share other parts.

    A part that was shared may become two, which start alike; or be frozen, or train again.

    Args:
        model: It stays as it is.
        sharing: As in `DualEncoder.from_backbone`; `None` changes nothing.
        embedding_dim: Size of a new projection with random weights in place of the model's, in
            each tower one of its own where it is separate; `None` keeps the model's.

    Raises:
        ConfigError: a part has weights for queries and others for documents, and should have one.
    """
    sharing = check_resharing(model.config.sharing, sharing)
    config = dataclasses.replace(model.config, sharing=sharing)
    if embedding_dim is not None:
        config = dataclasses.replace(
            config,
            projection=(DenseConfig(embedding_dim),),
            projection_layer="",
            trained_dims=(),
        )
    query = model.towers.query_parts
    backbone = Backbone(model.config.backbone, query.token_embedder, query.encoder)
    other = DualEncoder(
        copy_backbone(backbone),
        config,
        preprocessor=model.preprocessor,
    )
    for side in ("query_parts", "document_parts"):
        for part in PARTS:
            layer = getattr(getattr(model.towers, side), part)
            new = part == "projection" and embedding_dim is not None
            if layer is not None and not new:
                getattr(getattr(other.towers, side), part).set_weights(layer.get_weights())
    return other


def set_adapters(model: DualEncoder, lora: LoraConfig | None) -> None:
    """Gives a model other adapters, or none, in place; what those it has learned stays."""
    if model.config.lora is not None:
        model.merge_lora()
    if lora is not None:
        model.enable_lora(lora.rank, alpha=lora.alpha, target=lora.target)


def without_adapters(model: DualEncoder) -> DualEncoder:
    """Returns the model, or of one with adapters a copy into whose matrices they are folded."""
    if model.config.lora is None:
        return model
    merged = reshare(model, None)
    merged.merge_lora()
    return merged


def check_resharing(before: Sharing, after: str | Sharing | Mapping[str, Any] | None) -> Sharing:
    """Returns what towers will share.

    Raises:
        ConfigError: as `reshare`.
    """
    sharing = before if after is None else Sharing.of(after)
    for part in PARTS:
        wanted = getattr(sharing, part)
        if getattr(before, part) == "separate" != wanted:
            raise ConfigError(
                f"`sharing.{part}` must stay separate, for each tower has its own weights."
                f" Received: {wanted!r}"
            )
    return sharing
