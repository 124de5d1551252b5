"""Hugging Face directories: a transformer in safetensors with its tokenizer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.seeded_layer import described_weights
from tfde.checkpoints.checkpoint_files import (
    CheckpointFiles,
    EncoderSteps,
    length_setting,
    transformer_settings,
)
from tfde.checkpoints.families.family import Assignment, FieldsOfConfig, HuggingFaceFamily
from tfde.checkpoints.families.registry import FAMILIES
from tfde.checkpoints.safetensors_arrays import SafetensorsArrays
from tfde.config.backbones import BackboneConfig
from tfde.config.model import DenseConfig
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.read_tokenizer import read_hugging_face_tokenizer
from tfde.text.tokenizer import Tokenizer

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "merges.txt",
)
_DPR_PROJECTION = "encode_proj.weight"
_NO_LIMIT = 1_000_000  # transformers writes 1e30 where a tokenizer has no limit


class HuggingFaceModel:
    """One transformer of a checkpoint, opened but not yet in memory.

    Args:
        files: The directory with `config.json`.
        config_fields: The object in it.

    Attributes:
        config: Our description of the backbone.
        arrays: The checkpoint's arrays.

    Raises:
        ConfigError: another kind of model, a wrong field, or no safetensors.
        DataError: a weight file is damaged, or `config.json` and the arrays disagree.
    """

    def __init__(self, files: CheckpointFiles, config_fields: Mapping[str, Any]) -> None:
        self._files = files
        kind = config_fields.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise ConfigError(
                f"{files}/config.json: `model_type` must be one of {', '.join(FAMILIES)}."
                f" Received: {shorten(kind)}"
            )
        self._family: HuggingFaceFamily = FAMILIES[kind]
        self._fields = FieldsOfConfig(f"{files}/config.json", config_fields)
        self.config: BackboneConfig = self._family.read_config(self._fields)
        self.arrays = SafetensorsArrays(
            files, prefixes=self._family.prefixes, anchor=self._family.anchor
        )
        self._check_weights()

    def read_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the directory.

        Raises:
            ConfigError: it has none, or one that we cannot reproduce.
        """
        # Fetched one by one where the directory is a hub's.
        paths = [self._files.find(name) for name in _TOKENIZER_FILES]
        side = self._files.json_or_empty("tokenizer_config.json").get("truncation_side", "right")
        if side != "right":  # a long text's end would count, not its beginning
            raise ConfigError(
                f"{self._files}/tokenizer_config.json: `truncation_side` must be right."
                f" Received: {shorten(side)}"
            )
        directory = next((path.parent for path in paths if path), None)
        return read_hugging_face_tokenizer(directory or self._files.path("config.json").parent)

    def read_max_length_tokens(self) -> int | None:
        """Returns the limit that sentence-transformers, else the tokenizer, puts on a text.

        Raises:
            ConfigError: a limit is not a number, or leaves no room for a token.
        """
        limits = [self.config.max_sequence_length]
        of_tokenizer = "tokenizer_config.json"
        for name, settings, key in (
            (*transformer_settings(self._files), "max_seq_length"),
            (of_tokenizer, self._files.json_or_empty(of_tokenizer), "model_max_length"),
        ):
            value = length_setting(self._files, name, settings, key)
            if value is not None and value < _NO_LIMIT:
                limits.append(int(value))
                break
        return min((limit for limit in limits if limit is not None), default=None)

    def read_steps(self) -> EncoderSteps:
        """Returns the steps after the transformer, where the kind of model decides them.

        Source: Karpukhin et al. 2020, section 3.1 (DPR: [CLS], dot product; title [SEP] text).
        """
        if self._fields.get("model_type", None) != "dpr":
            return EncoderSteps()
        steps = EncoderSteps(
            pooling=("first",), normalize=False, document_template="{title} [SEP] {text}"
        )
        if not self._fields.get("projection_dim", 0):
            return steps
        dim = self._fields.size("projection_dim")
        found = [name for name in self.arrays.names() if name.endswith(_DPR_PROJECTION)]
        if not found:
            rule = f"`projection_dim` is set, so the weights must hold {_DPR_PROJECTION}."
            raise DataError(str(self._files), None, rule)
        kernel, bias = found[0], found[0].removesuffix("weight") + "bias"
        self.arrays.check(kernel, (dim, self.config.hidden_dim))
        self.arrays.check(bias, (dim,))
        values = [self.arrays.read(name).astype(np.float32) for name in (kernel, bias)]
        return dataclasses.replace(
            steps,
            projection=(DenseConfig(dim, use_bias=True),),
            projection_weights=(values[0].T, values[1]),
        )

    def read_weights(self, backbone: Backbone) -> Iterator[Assignment]:
        """Yields each variable of the backbone with its array and the array's name.

        Raises:
            DataError: an array is missing or cannot be read.
        """
        for source in self._family.sources(backbone):
            yield source.variable, source.join(self.arrays.read), source.names[0]

    def _check_weights(self) -> None:
        """Compares what `config.json` says with the arrays, before any memory is taken."""
        for key, (name, axis) in self._family.sizes.items():
            shape = self.arrays.shape(name)
            # 32 buckets are the only size that older checkpoints leave out.
            said = math.prod(self._fields.size(field, 32) for field in key.split("*"))
            if len(shape) <= axis or shape[axis] != said:
                rule = f"`{key}` must agree with the array {name}, whose shape is {shape}."
                raise DataError(f"{self._files}/config.json", None, rule, said)
        field, prefix = self._family.layers
        numbers = {
            name.removeprefix(prefix).partition(".")[0]
            for name in self.arrays.names()
            if name.startswith(prefix)
        }
        said = self._fields.size(field)
        if len(numbers) != said or numbers != {str(number) for number in range(said)}:
            rule = (
                f"`{field}` must agree with the weights, which hold {len(numbers)} layers"
                f" {prefix}N."
            )
            raise DataError(f"{self._files}/config.json", None, rule, said)
        with described_weights():
            plan = build_backbone(self.config)
        for source in self._family.sources(plan):
            for name in source.names:
                self.arrays.check(name, source.shape())
