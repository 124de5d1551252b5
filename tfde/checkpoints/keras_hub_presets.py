"""keras-hub's presets: a backbone in HDF5, its tokenizer, and what its task does with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.checkpoint_files import CheckpointFiles, EncoderSteps
from tfde.checkpoints.families.family import Assignment, FieldsOfConfig, KerasHubFamily, numbered
from tfde.checkpoints.families.registry import KERAS_HUB_FAMILIES
from tfde.checkpoints.hdf5_file import Hdf5Arrays
from tfde.checkpoints.keras_hub_tokenizers import read_keras_hub_tokenizer
from tfde.config.backbones import BackboneConfig
from tfde.config.model import Pooling
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.tokenizer import Tokenizer

_TEXT_EMBEDDERS = ("BertTextEmbedder", "XLMRobertaTextEmbedder")
_POOLING: dict[str, Pooling] = {"mean": "mean", "cls": "first", "max": "max"}


class KerasHubModel:
    """One backbone of a preset, opened but not yet in memory.

    Args:
        files: The preset.
        value: The object in its `config.json`.

    Attributes:
        config: Our description of the backbone.

    Raises:
        ConfigError: another kind of backbone, a wrong field, or no weights.
        DataError: a weight file is damaged, or `config.json` and the arrays disagree.
    """

    def __init__(self, files: CheckpointFiles, value: Mapping[str, Any]) -> None:
        self._files = files
        kind = value.get("class_name")
        if kind not in KERAS_HUB_FAMILIES:
            raise ConfigError(
                f"{files}/config.json: `class_name` must be one of"
                f" {', '.join(KERAS_HUB_FAMILIES)}. Received: {shorten(kind)}"
            )
        self._family: KerasHubFamily = KERAS_HUB_FAMILIES[kind]
        self.config: BackboneConfig = self._family.read_config(_fields(files, "config.json", value))
        self._arrays = Hdf5Arrays(files)
        self._check_layers()
        self._check_shapes()

    def read_tokenizer(self) -> Tokenizer:
        """Returns our tokenizer on the preset's vocabulary.

        Raises:
            ConfigError: the preset has no tokenizer, or one of another kind.
        """
        return read_keras_hub_tokenizer(self._files)

    def read_max_length_tokens(self) -> int | None:
        """Returns the length that the preset's preprocessor cuts texts to, if it has one.

        Raises:
            ConfigError: the preprocessor's length is not a number.
        """
        limits = [self.config.max_sequence_length]
        value = self._files.json_or_empty("preprocessor.json")
        if value:
            fields = _fields(self._files, "preprocessor.json", value)
            if fields.get("sequence_length", None) is not None:
                limits.append(fields.size("sequence_length"))
        return min((limit for limit in limits if limit is not None), default=None)

    def read_steps(self) -> EncoderSteps:
        """Returns the steps after the backbone, where the preset is of a `TextEmbedder`.

        A classifier's or a language model's `task.json` says nothing of embeddings.

        Raises:
            ConfigError: a text embedder or a pooling that we do not have.
        """
        value = self._files.json_or_empty("task.json")
        kind = value.get("class_name")
        if not isinstance(kind, str) or not kind.endswith("TextEmbedder"):
            return EncoderSteps()
        where = f"{self._files}/task.json"
        if kind not in _TEXT_EMBEDDERS:
            raise ConfigError(
                f"{where}: a text embedder must be a {' or a '.join(_TEXT_EMBEDDERS)}."
                f" Received: {shorten(kind)}"
            )
        fields = _fields(self._files, "task.json", value)
        pooling, normalize = fields.get("pooling_mode", "mean"), fields.get("normalize", True)
        if not isinstance(pooling, str) or pooling not in _POOLING:
            fields.refuse("pooling_mode", f"one of {', '.join(_POOLING)}", pooling)
        if not isinstance(normalize, bool):
            fields.refuse("normalize", "true or false", normalize)
        return EncoderSteps(pooling=(_POOLING[pooling],), normalize=normalize)

    def read_weights(self, backbone: Backbone) -> Iterator[Assignment]:
        """Yields each variable of the backbone with its array and the arrays' first name.

        Raises:
            DataError: an array cannot be read.
        """
        for stored in self._family.stored(self.config):
            variable = stored.variable(backbone)
            # keras-hub has an axis for the heads of attention; in ours they lie side by side.
            shape = (*variable.shape[:-1], -1)
            parts = [self._arrays.read(name).reshape(shape) for name in stored.names]
            array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
            yield variable, array, stored.names[0]

    def _check_layers(self) -> None:
        """Compares the number of layers and their parts with `config.json`."""
        family, found = self._family, dict[str, set[str]]()
        for group in self._arrays.groups():
            _, layer, part = (*group.split("/", 2), "", "")[:3]
            number = layer.removeprefix(family.layer)
            if layer.startswith(family.layer) and (not number or number[1:].isdigit()):
                found.setdefault(layer, set()).add(part.partition("/")[0])
        ours = {name for name, parts in found.items() if family.foreign_part not in parts}
        said = self.config.num_layers
        if ours != {numbered(family.layer, i) for i in range(said)}:
            raise self._disagreement("num_layers", f"hold {len(ours)} layers {family.layer}", said)
        for field, part in family.absent_parts(self.config).items():
            if any(part in found[name] for name in ours):
                raise self._disagreement(field, f"have a {part} in each layer", False)

    def _check_shapes(self) -> None:
        """Compares every array with `config.json`, before any memory is taken."""
        sizes = self._family.sizes(self.config)
        for stored in self._family.stored(self.config):
            wanted = tuple(sizes[name] for name in stored.shape)
            rule = f"config.json's ({', '.join(stored.shape)})"
            for name in stored.names:
                self._arrays.check(name, wanted, rule=rule)

    def _disagreement(self, field: str, weights: str, said: object) -> DataError:
        rule = f"`{field}` must agree with the weights, which {weights}."
        return DataError(f"{self._files}/config.json", None, rule, said)


def _fields(files: CheckpointFiles, name: str, value: Mapping[str, Any]) -> FieldsOfConfig:
    fields = value.get("config")
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f"{files}/{name}: must hold the object `config`. Received: {shorten(fields)}"
        )
    return FieldsOfConfig(f"{files}/{name}", fields)
