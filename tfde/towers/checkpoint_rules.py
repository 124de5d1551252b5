"""What a checkpoint says about text and pooling, and what it allows."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfde.checkpoints.checkpoint_files import EncoderSteps, is_keras_file
from tfde.checkpoints.loading import LoadedBackbone, OpenedBackbone, open_backbones
from tfde.config.model import Pooling, TextConfig
from tfde.errors import ConfigError
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.preset import preset_class

_LENGTHS = ("query_max_length_tokens", "document_max_length_tokens")
_log = logging.getLogger(__name__)


def text_config(
    text: TextConfig | None, loaded: Sequence[LoadedBackbone | OpenedBackbone]
) -> TextConfig:
    """Returns what was asked for, cut to what the checkpoints can hold, and else what they say."""
    query, document = loaded[0], loaded[-1]
    limits = (query.max_length_tokens, document.max_length_tokens)
    asked = cut_lengths(text or TextConfig(), *limits)
    says: dict[str, Any] = {
        "query_prompt": query.steps.query_prompt,
        "document_prompt": document.steps.document_prompt,
    }
    if document.steps.document_template is not None:
        says["document_template"] = document.steps.document_template
    usual = TextConfig().filled()
    for name, limit in zip(_LENGTHS, limits, strict=True):
        if query.steps.pooling is None:
            says[name] = min(getattr(usual, name), limit or sys.maxsize)
        else:  # a retriever that somebody trained: texts are cut where its own library cuts them
            says[name] = limit or max(asked.buckets)
    for name, length in zip(
        _LENGTHS, (query.steps.query_length, document.steps.document_length), strict=True
    ):
        if length is not None:
            says[name] = int(min(length, says[name]))
    return asked.filled(says)


def cut_lengths(
    text: TextConfig, query_limit: int | None, document_limit: int | None
) -> TextConfig:
    """Returns `text` with lengths that the checkpoints can hold; `None` is no limit.

    What was asked for and is too long is told.
    """
    lengths: dict[str, Any] = {}
    for name, limit in zip(_LENGTHS, (query_limit, document_limit), strict=True):
        wanted = getattr(text, name)
        if wanted is not None and limit is not None and limit < wanted:
            lengths[name] = limit
            _log.warning(
                "`%s` %d is cut to %d, the longest text that the checkpoint was made for",
                name,
                wanted,
                limit,
            )
    return dataclasses.replace(text, **lengths)


def check_pooling(pooling: tuple[Pooling, ...], hidden_dim: int, steps: EncoderSteps) -> None:
    """Checks that pooled vectors fit the checkpoint's projection.

    Raises:
        ConfigError: they do not.
    """
    rows = steps.projection_weights[0].shape[0]
    if hidden_dim * len(pooling) != rows:
        raise ConfigError(
            f"`pooling` must give vectors of {rows} numbers, which the checkpoint's projection"
            " takes; `embedding_dim` puts a new one in its place."
            f" Received: {', '.join(pooling)} of {hidden_dim} numbers each"
        )


def load_preprocessor(path: str | Path) -> TextPreprocessor:
    """Returns the tokenizer, template and lengths of whatever `DualEncoder.load` takes.

    No weight is read, but those of a `.keras` file.

    Raises:
        ConfigError: as `DualEncoder.load`.
        DataError: as `DualEncoder.load`.
    """
    if is_keras_file(path):
        from tfde.towers.dual_encoder import DualEncoder  # which imports this module

        preprocessor: TextPreprocessor = DualEncoder.from_preset(path).preprocessor
        return preprocessor
    if preset_class(path) is not None:
        return TextPreprocessor.load(path)
    opened = open_backbones(path)
    return TextPreprocessor(opened[0].tokenizer, text_config(None, opened))
