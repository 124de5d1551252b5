"""Models and tokenizers that a program holds: keras-hub's, or any functional Keras model."""

from __future__ import annotations

import tempfile
from typing import Any

import keras

from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.keras_model import describe_keras_model
from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.families.registry import KERAS_HUB_FAMILIES
from tfde.checkpoints.keras_hub_presets import KerasHubModel
from tfde.checkpoints.keras_hub_tokenizers import read_keras_hub_tokenizer
from tfde.checkpoints.loading import read_backbone
from tfde.errors import ConfigError, require, shorten
from tfde.text.tokenizer import Tokenizer


def take_tokenizer(tokenizer: Any) -> Tokenizer:
    """Returns a tokenizer of ours, made of one of keras-hub's if it must be.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    holds = hasattr(tokenizer, "save_to_preset")
    require(holds, "tokenizer", "one of tfde or of keras-hub", tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_to_preset(folder)
        return read_keras_hub_tokenizer(CheckpointFiles(folder))


def take_keras_model(
    model: keras.Model,
    tokenizer: Tokenizer,
    *,
    dropout: float | None,
    dtype: str | None,
) -> Backbone:
    """Returns a backbone with the weights of a model.

    Those of keras-hub that we have become ours. Any other functional model stays what it is, cut
    behind its token embedding where that can be.

    Args:
        model: keras-hub's backbone, or a functional model (see `describe_keras_model`).
        tokenizer: Says how many token ids there are where the model does not.
        dropout: Replaces the rate of keras-hub's.
        dtype: Keras dtype policy of keras-hub's.

    Raises:
        ConfigError: it is no such model; another one than keras-hub's has rate and dtype of its
            own, which cannot be replaced.
    """
    if type(model).__name__ in KERAS_HUB_FAMILIES and hasattr(model, "save_to_preset"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_to_preset(folder)
            files = CheckpointFiles(folder)
            opened = KerasHubModel(files, files.json_object("config.json"))
            return read_backbone(files, opened, dropout=dropout, dtype=dtype)
    for name, value in (("dropout", dropout), ("dtype", dtype)):
        if value is not None:
            raise ConfigError(
                f"`{name}` is the model's own where `backbone` is a Keras model. Received: {value}"
            )
    config, embedder, rest = describe_keras_model(model, vocabulary_size=tokenizer.vocabulary_size)
    backbone = build_backbone(config)
    ids, mask = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    try:
        backbone.encoder(backbone.token_embedder(ids), mask)
    except (TypeError, ValueError) as error:
        where, reason = type(model).__name__, shorten(str(error).splitlines()[-1])
        raise ConfigError(
            f"`backbone` must take any number of texts of any length. Received: {where} ({reason})"
        ) from error
    backbone.token_embedder.set_weights(embedder)
    backbone.encoder.set_weights(rest)
    return backbone
