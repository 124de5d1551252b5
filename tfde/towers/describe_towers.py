"""What stands on the backbones of checkpoints: from their own words and from what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfde.checkpoints.loading import LoadedBackbone
from tfde.config.model import DenseConfig, Pooling, Sharing, TowersConfig
from tfde.errors import require
from tfde.layers.keras_layer import try_pooling, try_projection, written
from tfde.towers.checkpoint_rules import check_pooling
from tfde.towers.sharing import Towers


def describe_towers(
    starts: Sequence[LoadedBackbone],
    *,
    sharing: str | Sharing | Mapping[str, Any] | None,
    pooling: Pooling | Sequence[Pooling] | keras.layers.Layer | None,
    projection: keras.layers.Layer | None,
    embedding_dim: int | None,
    projection_bias: bool,
    encode_before_projection: bool,
    normalize: bool | None,
) -> TowersConfig:
    """Returns what two towers share and what follows their backbones.

    Args:
        starts: The backbone of both towers, or that of queries and that of documents.
        sharing: As of `DualEncoder.from_backbone`, like all that follow.
        pooling: As there.
        projection: As there.
        embedding_dim: As there.
        projection_bias: As there.
        encode_before_projection: As there.
        normalize: As there.

    Raises:
        ConfigError: an option is unknown, or does not fit the checkpoint or another one.
    """
    query, document = starts[0], starts[-1]
    steps, sizes = query.steps, query.backbone.config
    for name, layer in (("pooling", pooling), ("projection", projection)):
        holds = layer is None or name == "pooling" or isinstance(layer, keras.layers.Layer)
        require(holds, name, "a Keras layer; `embedding_dim` makes one of ours", layer)
    pooling_layer = written(pooling) if isinstance(pooling, keras.layers.Layer) else ""
    named = isinstance(pooling, str | Sequence) or pooling is None or bool(pooling_layer)
    require(named, "pooling", "a name, several, or a Keras layer (not its class)", pooling)
    modes: Any = None if pooling_layer else pooling
    modes = (modes,) if isinstance(modes, str) else modes
    modes = tuple(modes or steps.pooling or ("mean",))
    dense = steps.projection
    if embedding_dim is not None:
        require(projection is None, "projection", "None where `embedding_dim` is given", projection)
        dense = (DenseConfig(embedding_dim, projection_bias),)
    elif projection is not None:
        dense = ()
    elif dense:
        require(not pooling_layer, "pooling", "a name: the checkpoint has a projection", pooling)
        check_pooling(modes, sizes.hidden_dim, steps)
    pooled_dim = sizes.hidden_dim * len(modes)
    if pooling_layer:
        pooled_dim = try_pooling(pooling_layer, sizes.hidden_dim)
    if projection is not None:
        try_projection(written(projection), pooled_dim)
    if normalize is None:
        normalize = steps.normalize is not False
    return TowersConfig(
        backbone=sizes,
        sharing=Sharing.of(sharing or ("sde" if document is query else "ade")),
        pooling=modes,
        pool_prompts=steps.pool_prompts,
        projection=dense,
        normalize=normalize,
        pooling_layer=pooling_layer,
        projection_layer="" if projection is None else written(projection),
        encode_before_projection=encode_before_projection,
    )


def take_projections(
    towers: Towers, starts: Sequence[LoadedBackbone], projection: keras.layers.Layer | None
) -> None:
    """Gives the towers the weights of a layer that has some, or of their checkpoints' projections.

    Args:
        towers: As `describe_towers` described them.
        starts: As there.
        projection: As there.
    """
    parts = (towers.query_parts, towers.document_parts)
    for start, tower in zip((starts[0], starts[-1]), parts, strict=True):
        if tower.projection is None:
            continue
        if projection is None:
            tower.projection.set_weights(list(start.steps.projection_weights))
        elif projection.built:
            tower.projection.set_weights(projection.get_weights())
