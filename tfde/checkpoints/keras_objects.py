"""Models and tokenizers that a program holds: keras-hub's, or any functional Keras model."""

from __future__ import annotations

import logging
import re
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.keras_model import describe_keras_model
from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.families.registry import KERAS_HUB_FAMILIES
from tfde.checkpoints.keras_hub_presets import KerasHubModel
from tfde.checkpoints.keras_hub_tokenizers import read_keras_hub_tokenizer
from tfde.checkpoints.loading import read_backbone
from tfde.errors import ConfigError, require, shorten
from tfde.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
_TRIED_TOKENS = 5
_CHANGE_TOLD = 0.02  # of the largest number: more than rounding, in half precision too


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
            own, which cannot be replaced; it does not know the tokenizer's ids; layers of one of
            keras-hub's are frozen or have LoRA, which ours would not be told of.
    """
    if type(model).__name__ in KERAS_HUB_FAMILIES and hasattr(model, "save_to_preset"):
        _check_trains(model)
        with tempfile.TemporaryDirectory() as folder:
            model.save_to_preset(folder)
            files = CheckpointFiles(folder)
            opened = KerasHubModel(files, files.json_object("config.json"))
            return read_backbone(files, opened, dropout=dropout, dtype=dtype)
    for name, value in (("dropout", dropout), ("dtype", dtype)):
        if value is not None:
            raise ConfigError(
                f"`{name}` is the model's own where `backbone` is a Keras model: set it where the"
                f" model is made. Received: {value}"
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
    _try_on_a_text(backbone, tokenizer, type(model).__name__)
    return backbone


def _check_trains(model: keras.Model) -> None:
    """Refuses what is said of the training of layers that become ours."""
    layers = model._flatten_layers()
    frozen = [layer.name for layer in layers if layer.weights and not layer.trainable]
    adapted = [layer.name for layer in layers if getattr(layer, "lora_enabled", False)]
    for names, way in (
        (adapted, "call `enable_lora` of the model that it becomes"),
        (frozen, "freeze the towers after it, such as `model.query_tower.trainable = False`"),
    ):
        if names:
            raise ConfigError(
                f"`backbone` must train in all its layers, which become others: {way}."
                f" Received: {shorten(', '.join(names))}"
            )


def _try_on_a_text(backbone: Backbone, tokenizer: Tokenizer, name: str) -> None:
    """Refuses a model that cannot read a text, and tells of one that reads what pads it.

    Raises:
        ConfigError: it does not know all token ids, or takes texts of one length.
    """
    last = tokenizer.vocabulary_size - 1
    ids = np.arange(last, max(last - _TRIED_TOKENS, -1), -1, dtype=np.int32)[np.newaxis]
    padded = np.pad(ids, [(0, 0), (0, _TRIED_TOKENS)], constant_values=tokenizer.pad_id)
    mask = np.pad(np.ones_like(ids), [(0, 0), (0, _TRIED_TOKENS)])

    def vectors(tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
        with tf.device("CPU"):  # a GPU gives zeros for ids that there are not
            embedded = backbone.token_embedder(tf.constant(tokens))
            found = backbone.encoder(embedded, tf.constant(real), training=False)
        return np.asarray(found, np.float32)

    try:
        alone, beside = vectors(ids, np.ones_like(ids)), vectors(padded, mask)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        rule = f"must know the {tokenizer.vocabulary_size:,} token ids of its tokenizer, and take"
        # Keras puts a line of its own before what the layer says.
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[1 if "Exception encountered" in lines[0] and lines[1:] else 0]
        reason = shorten(re.sub(r"\x1b\[\dm|\{\{.*?\}\}", "", reason).strip())
        raise ConfigError(
            f"`backbone` {rule} texts of any length. Received: {name} ({reason})"
        ) from error
    change = float(np.abs(alone - beside[:, : ids.shape[1]]).max())
    largest = float(np.abs(alone).max())
    if change > _CHANGE_TOLD * largest:
        _LOG.warning(
            "%s: what stands behind a text as padding changes its vectors (by %.2g, where the"
            " largest number is %.2g): embeddings depend on the texts beside it. Let every layer"
            " leave out what `padding_mask` leaves out",
            name,
            change,
            largest,
        )
