"""What a model starts from: a pre-trained checkpoint, or random weights of given sizes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras

from tfde.backbones.backbone import build_backbone, cut_backbone, with_second_segment
from tfde.checkpoints.checkpoint_files import EncoderSteps
from tfde.checkpoints.keras_objects import take_keras_model, take_tokenizer
from tfde.checkpoints.loading import LoadedBackbone, load_backbones, only_one
from tfde.config.backbones import BackboneConfig
from tfde.errors import ConfigError, require
from tfde.text.tokenizer import Tokenizer


def load_starts(
    backbone: str | Path | BackboneConfig | keras.Model,
    document_backbone: str | Path | None = None,
    *,
    num_layers: int | None,
    second_segment: bool = False,
    tokenizer: Tokenizer | None,
    dropout: float | None,
    dtype: str | None,
    seed: int | None,
) -> list[LoadedBackbone]:
    """Loads or builds one backbone for both towers, or that of queries and that of documents.

    Args:
        backbone: What `load_backbones` takes, a description for random weights, or a Keras model
            with its weights (see `take_keras_model`).
        document_backbone: The documents' checkpoint, where it is another.
        num_layers: Only the first so many layers; `None` for all.
        second_segment: Whether what follows the first separator of a text has BERT's segment 1.
        tokenizer: Takes the place of the checkpoint's; needed for random weights and Keras models;
            may be keras-hub's.
        dropout: Replaces the dropout rate.
        dtype: Keras dtype policy; `None` takes the current one.
        seed: Seed of random weights.

    Raises:
        ConfigError: a tokenizer is missing or does not fit; a checkpoint is missing, of a kind
            that is not supported, or does not fit the other one; it has no second segment.
        DataError: a file of a checkpoint is not what its name says.
    """
    if tokenizer is not None:
        tokenizer = take_tokenizer(tokenizer)
    if isinstance(backbone, str | Path):
        starts = load_backbones(backbone, document_backbone, dropout=dropout, dtype=dtype)
    elif document_backbone is not None:
        raise ConfigError(
            "`document_backbone` needs a checkpoint as `backbone`, not a description."
            f" Received: {document_backbone}"
        )
    elif isinstance(backbone, keras.Model):
        tokenizer = _needed(tokenizer)
        layers = take_keras_model(backbone, tokenizer, dropout=dropout, dtype=dtype)
        longest = layers.config.max_sequence_length
        starts = [LoadedBackbone(layers, tokenizer, longest, EncoderSteps())]
    else:
        rule = (
            "a path, a preset's name, a description such as tfde.BertConfig(num_layers=4), or a"
            " Keras model"
        )
        require(isinstance(backbone, BackboneConfig), "backbone", rule, backbone)
        starts = [random_start(backbone, tokenizer, dropout=dropout, dtype=dtype, seed=seed)]
    if tokenizer is not None:
        starts = [dataclasses.replace(start, tokenizer=tokenizer) for start in starts]
    if num_layers is not None:
        starts = [
            dataclasses.replace(start, backbone=cut_backbone(start.backbone, num_layers))
            for start in starts
        ]
    if second_segment:
        starts = [
            dataclasses.replace(
                start, backbone=with_second_segment(start.backbone, start.tokenizer.separator_id)
            )
            for start in starts
        ]
    check_vocabulary(starts[0].tokenizer, starts[0].backbone.config)
    return starts


def load_start(
    backbone: str | Path | BackboneConfig | keras.Model, **options: Any
) -> LoadedBackbone:
    """Loads or builds the one backbone of a model; options and errors as in `load_starts`.

    Raises:
        ConfigError: the checkpoint has one for queries and one for documents.
    """
    return only_one(backbone, load_starts(backbone, **options))


def random_start(
    config: BackboneConfig,
    tokenizer: Tokenizer | None,
    *,
    dropout: float | None,
    dtype: str | None,
    seed: int | None,
) -> LoadedBackbone:
    """Builds a backbone with random weights; arguments as in `load_starts`.

    Raises:
        ConfigError: there is no tokenizer, or a dropout rate for a backbone that has none.
    """
    tokenizer = _needed(tokenizer)
    if dropout is not None:
        sizes = dataclasses.fields(config)  # type: ignore[arg-type]
        has_dropout = any(size.name == "dropout" for size in sizes)
        require(has_dropout, "dropout", f"None: a {config.kind} backbone has none", dropout)
        config = config.replace(dropout=dropout)
    backbone = build_backbone(config, seed=seed, dtype=dtype)
    return LoadedBackbone(backbone, tokenizer, config.max_sequence_length, EncoderSteps())


def _needed(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise ConfigError(
            "`tokenizer` is needed when `backbone` is a description or a Keras model, which bring"
            " no vocabulary; train one with tfde.train_sentencepiece."
        )
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, config: Any) -> None:
    """Checks that a backbone has an embedding for every token.

    Raises:
        ConfigError: it has not.
    """
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ConfigError(
            f"`tokenizer` has {tokenizer.vocabulary_size} tokens, more than the backbone's"
            f" vocabulary_size={config.vocabulary_size}."
        )
