"""Loading a pre-trained backbone with its tokenizer, whatever wrote it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tfde.backbones import hugging_face, keras_hub_presets
from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.preset_files import PresetFiles
from tfde.backbones.sentence_transformers_files import SentenceTransformersFiles
from tfde.config import BackboneConfig, Pooling
from tfde.errors import ConfigError, DataError
from tfde.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedBackbone:
    """A pre-trained backbone and what came with it.

    Args:
        backbone: The layers with the checkpoint's weights.
        tokenizer: The checkpoint's tokenizer.
        max_length_tokens: Longest text, special tokens included; `None` where there is no limit.
        pooling: How the checkpoint pools; `None` where it does not say (only
            sentence-transformers directories do, here and below).
        normalize: Whether its embeddings have unit length; `None` where it does not say.
        query_prompt: What it puts before every query.
        document_prompt: What it puts before every document.
    """

    backbone: Backbone
    tokenizer: Tokenizer
    max_length_tokens: int | None
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prompt: str = ""
    document_prompt: str = ""


def load_backbone(
    path_or_preset: str | Path, *, dropout: float | None = None, name_prefix: str = ""
) -> LoadedBackbone:
    """Loads a keras-hub preset (T5, BERT), or a BERT of Hugging Face or sentence-transformers.

    Args:
        path_or_preset: A directory, a keras-hub preset name, or a `kaggle://` or `hf://` handle;
            the latter two are fetched by keras-hub and cached.
        dropout: Replaces the checkpoint's dropout rate.
        name_prefix: Put before the names of the layers.

    Raises:
        ConfigError: a file is missing or cannot be fetched; the model or tokenizer is of a kind
            that is not supported.
        DataError: a file is not what its name says; an array is missing or has another shape.
    """
    steps = SentenceTransformersFiles.read(PresetFiles(path_or_preset))
    files = steps.transformer
    value = files.json_object("config.json")
    config: BackboneConfig
    if "registered_name" in value:
        reader: ModuleType = keras_hub_presets
        config = keras_hub_presets.read_config(files, value)
    elif "model_type" in value:
        reader = hugging_face
        config = hugging_face.read_config(files, value)
    else:
        raise ConfigError(
            f"{files}/config.json: must be a keras-hub preset's (T5Backbone, BertBackbone) or"
            " Hugging Face's (model_type bert). Received: neither"
        )
    if dropout is not None:
        config = dataclasses.replace(config, dropout=dropout)
    tokenizer = reader.read_tokenizer(files)
    limits = [reader.read_max_length_tokens(files), getattr(config, "max_sequence_length", None)]
    backbone = build_backbone(config, name_prefix=name_prefix)
    for variable, array, name in reader.read_weights(files, backbone):
        if array.shape != tuple(variable.shape):
            rule = f"the array {name} must have shape {tuple(variable.shape)}."
            raise DataError(str(files), None, rule, array.shape)
        variable.assign(array)
    return LoadedBackbone(
        backbone,
        tokenizer,
        min((limit for limit in limits if limit is not None), default=None),
        steps.pooling,
        steps.normalize,
        steps.query_prompt,
        steps.document_prompt,
    )
