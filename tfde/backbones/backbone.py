"""A backbone: the two layers that every tower starts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from tfde.backbones.functional import seed_stream
from tfde.backbones.lora import enable_lora
from tfde.backbones.registry import builder_of
from tfde.backbones.seeded_layer import zero_weights
from tfde.config.backbones import BackboneConfig, check_transformer
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
    build = builder_of(config)
    token_embedder, encoder = build(
        config,
        {"seed": next(seeds), "name": f"{name_prefix}token_embedder", "dtype": policy},
        {"seed": next(seeds), "name": f"{name_prefix}encoder", "dtype": policy},
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
            if getattr(layer, "lora", None) is not None and getattr(copy, "lora", None) is None:
                enable_lora(copy, layer.lora)  # the encoder of a program's own backbone
        for source, target in zip(layer.weights, copy.weights, strict=True):
            target.assign(source)
        layers.append(copy)
    return Backbone(backbone.config, *layers)


def cut_backbone(backbone: Backbone, num_layers: int) -> Backbone:
    """Returns a backbone of the first layers of another, with its weights.

    Args:
        backbone: Of Transformer layers.
        num_layers: How many layers are kept.

    Raises:
        ConfigError: there are not so many, or the backbone has no layers.
    """
    config = backbone.config
    check_transformer(config)
    rule = f"in [1, {config.num_layers}]"
    require(1 <= num_layers <= config.num_layers, "num_layers", rule, num_layers)
    with zero_weights():
        cut = build_backbone(
            config.replace(num_layers=num_layers),
            name_prefix=backbone.encoder.name.removesuffix("encoder"),
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


def with_second_segment(backbone: Backbone, separator_id: int) -> Backbone:
    """Returns the backbone, whose tokens behind the first separator now have segment 1.

    Args:
        backbone: BERT, or one of its kin with two segments.
        separator_id: The separator.

    Raises:
        ConfigError: the backbone has no second segment.
    """
    config = backbone.config
    holds = config.num_segments > 1 and hasattr(config, "separator_id")
    require(holds, "second_segment", f"False: {config.summary()} has no second segment", True)
    layer: Any = backbone.token_embedder
    layer.separator_id = separator_id
    return Backbone(config.replace(separator_id=separator_id), layer, backbone.encoder)


def _name_in_layer(weight: keras.Variable) -> str:
    return str(weight.path.partition("/")[2])


def _dtype_policy(name: str | None) -> keras.DTypePolicy:
    names = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
    chosen = keras.config.dtype_policy().name if name is None else name
    require(chosen in names, "dtype", f"{', '.join(names[:-1])} or {names[-1]}", chosen)
    return keras.dtype_policies.get(chosen)
