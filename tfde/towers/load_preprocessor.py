"""What a model does with texts, without the model."""

from __future__ import annotations

from pathlib import Path

from tfde.checkpoints.loading import open_backbones
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.checkpoint_rules import text_config
from tfde.towers.preset import preset_class


def load_preprocessor(path: str | Path) -> TextPreprocessor:
    """Returns the tokenizer, template and lengths of whatever `DualEncoder.load` takes.

    No weight is read.

    Raises:
        ConfigError: as `DualEncoder.load`.
        DataError: as `DualEncoder.load`.
    """
    if preset_class(path) is not None:
        return TextPreprocessor.load(path)
    opened = open_backbones(path)
    return TextPreprocessor(opened[0].tokenizer, text_config(None, opened))
