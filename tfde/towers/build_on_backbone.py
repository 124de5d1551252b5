"""A dual encoder on a pre-trained checkpoint, a Keras model, or random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

from tfde.checkpoints.initial_backbones import load_starts
from tfde.config.backbones import BackboneConfig
from tfde.config.model import DenseConfig, Pooling, Sharing, TextConfig, TowersConfig
from tfde.errors import require
from tfde.layers.keras_layer import try_pooling, try_projection, written
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.checkpoint_rules import check_pooling, text_config

Model = TypeVar("Model")


def build_on_backbone(
    cls: type[Model],
    backbone: str | Path | BackboneConfig | keras.Model,
    *,
    document_backbone: str | Path | None,
    num_layers: int | None,
    second_segment: bool,
    sharing: str | Sharing | Mapping[str, Any] | None,
    tokenizer: Tokenizer | None,
    text: TextConfig | None,
    pooling: Pooling | Sequence[Pooling] | keras.layers.Layer | None,
    projection: keras.layers.Layer | None,
    embedding_dim: int | None,
    projection_bias: bool,
    encode_before_projection: bool,
    normalize: bool | None,
    dropout: float | None,
    dtype: str | None,
    seed: int | None,
) -> Model:
    """Returns what `DualEncoder.from_backbone` returns; `cls` is its class, all else its arguments.

    Raises:
        ConfigError: as there.
        DataError: as there.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    starts = load_starts(
        backbone,
        document_backbone,
        num_layers=num_layers,
        second_segment=second_segment,
        tokenizer=tokenizer,
        dropout=dropout,
        dtype=dtype,
        seed=seed,
    )
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
    config = TowersConfig(
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
    model: Any = cls
    model = model(
        query.backbone,
        config,
        preprocessor=TextPreprocessor(query.tokenizer, text_config(text, starts)),
        document_backbone=None if document is query else document.backbone,
    )
    towers = (model.towers.query_parts, model.towers.document_parts)
    if projection is not None and projection.built:
        for tower in towers:
            tower.projection.set_weights(projection.get_weights())
    if dense and embedding_dim is None:
        for start, tower in zip((query, document), towers, strict=True):
            if tower.projection is not None:
                tower.projection.set_weights(list(start.steps.projection_weights))
    return model
