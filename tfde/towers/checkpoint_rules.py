"""What a checkpoint says about text and pooling, and what it allows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from tfde.checkpoints.checkpoint_files import EncoderSteps, is_keras_file
from tfde.checkpoints.loading import LoadedBackbone, OpenedBackbone, open_backbones
from tfde.config.model import Pooling, TextConfig
from tfde.errors import ConfigError
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.preset import preset_class

_log = logging.getLogger(__name__)


def text_config(
    text: TextConfig | None, loaded: Sequence[LoadedBackbone | OpenedBackbone]
) -> TextConfig:
    """Returns the text handling of a checkpoint, or the one given, cut to what it can hold."""
    query, document = loaded[0], loaded[-1]
    limits = (query.max_length_tokens, document.max_length_tokens)
    if text is not None:
        return cut_lengths(text, *limits)
    text = TextConfig(
        query_prompt=query.steps.query_prompt, document_prompt=document.steps.document_prompt
    )
    if document.steps.document_template is not None:
        text = dataclasses.replace(text, document_template=document.steps.document_template)
    if query.steps.pooling is None:
        return cut_lengths(text, *limits)
    # A retriever that somebody trained: texts are cut where its own library cuts them.
    query_limit, document_limit = (limit or max(text.buckets) for limit in limits)
    return dataclasses.replace(
        text, query_max_length_tokens=query_limit, document_max_length_tokens=document_limit
    )


def cut_lengths(
    text: TextConfig, query_limit: int | None, document_limit: int | None
) -> TextConfig:
    """Returns `text` with lengths that the checkpoints can hold; `None` is no limit.

    What was asked for and is too long is told; the default of a length is nothing that was.
    """
    lengths = {}
    limits = {"query_max_length_tokens": query_limit, "document_max_length_tokens": document_limit}
    for name, limit in limits.items():
        wanted = getattr(text, name)
        lengths[name] = min(wanted, limit or wanted)
        if lengths[name] < wanted != getattr(TextConfig, name):
            _log.warning(
                "`%s` %d is cut to %d, the longest text that the checkpoint was made for",
                name,
                wanted,
                lengths[name],
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
