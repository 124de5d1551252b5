"""Which backbones there are: a description, and the function that builds its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tfde.argument_types import typed
from tfde.backbones.bag_of_words import build_bag_of_words
from tfde.backbones.bert import build_bert
from tfde.backbones.keras_model import KerasModelConfig, build_keras_model
from tfde.backbones.t5 import build_t5
from tfde.config.backbones import (
    BACKBONES,
    BackboneConfig,
    BagOfWordsConfig,
    BertConfig,
    T5Config,
)
from tfde.errors import ConfigError, require, shorten

# From a description and what belongs to each layer alone (`seed`, `name`, `dtype`) to the token
# embedder and the encoder, as `tfde.backbones.backbone.Backbone` has them; not built yet.
Build = Callable[
    [Any, dict[str, Any], dict[str, Any]], tuple[keras.layers.Layer, keras.layers.Layer]
]

_BUILDERS: dict[type[BackboneConfig], Build] = {
    T5Config: build_t5,
    BertConfig: build_bert,
    BagOfWordsConfig: build_bag_of_words,
    KerasModelConfig: build_keras_model,
}
BACKBONES.setdefault(KerasModelConfig.kind, KerasModelConfig)


@typed
def register_backbone(config: type[BackboneConfig], build: Build) -> None:
    """Makes a backbone known: to `DualEncoder.from_backbone`, `from_preset`, and recipes.

    It is known to the process that calls this, before it loads a model with such a backbone.
    Called again for the same name, it takes the place of what was there.

    Args:
        config: A frozen dataclass on `tfde.BackboneConfig` with its name as `kind`.
        build: From a description and the arguments of each layer (`seed`, `name`, `dtype`) to the
            token embedder, `token_ids (B, L) int32` -> `(B, L, E)`, and the encoder, `(B, L, E)`
            and `padding_mask (B, L) int32` -> `(B, L, H)`. Both take `training`, give back their
            arguments by `get_config`, and name each weight once.

    Raises:
        ConfigError: `config` is no such class, or its `kind` is that of a backbone of tfde.
    """
    holds = issubclass(config, BackboneConfig) and dataclasses.is_dataclass(config)
    require(holds, "config", "a dataclass on tfde.BackboneConfig", config.__name__)
    taken = BACKBONES.get(config.kind)
    own = taken is not None and taken.__module__.startswith("tfde.")
    rule = "a name that no backbone of tfde has"
    require(bool(config.kind) and not own, f"{config.__name__}.kind", rule, config.kind)
    BACKBONES[config.kind] = config
    _BUILDERS[config] = build


def builder_of(config: BackboneConfig) -> Build:
    """Returns the function that builds the layers of a description.

    Raises:
        ConfigError: nobody registered one.
    """
    if type(config) not in _BUILDERS:
        known = ", ".join(sorted(kind.__name__ for kind in _BUILDERS))
        raise ConfigError(
            f"`backbone` must be one of {known}, or made known by tfde.register_backbone."
            f" Received: {shorten(config)}"
        )
    return _BUILDERS[type(config)]
