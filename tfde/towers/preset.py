"""The model directory: keras-hub's preset layout with our configuration in it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfde.checkpoints.checkpoint_files import hint_of_run, is_keras_file
from tfde.config.backbones import BACKBONES, backbone_from_mapping, backbone_to_mapping
from tfde.config.backbones import from_mapping as config_from_mapping
from tfde.config.lora import LoraConfig
from tfde.config.model import DenseConfig, Sharing, TowersConfig
from tfde.errors import ConfigError, CorruptError
from tfde.storage.json_file import read_json_file
from tfde.towers.model_card import CARD_FILE, model_card
from tfde.version import __version__

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
METADATA_FILE = "metadata.json"
DUAL_ENCODER = "DualEncoder"
_REGISTERED_BY = "backbone_registered_by"  # the module of a program's own backbone
# Fields that model directories had not from the beginning.
_LATER = {
    "trained_dims", "lora", "pooling_layer", "projection_layer", "fusion",
    "encode_before_projection",
}  # fmt: skip
# What takes the other kinds of model, where a dual encoder was asked for.
_INSTEAD = {
    "CrossEncoder": "`tfde rerank` and CrossEncoder.from_preset take it",
    "Matcher": "`tfde rerank` and Matcher.from_preset take it",
    "PhraseEncoder": "`tfde phrases` and PhraseEncoder.from_preset take it",
}
# What reading a damaged file raises, zip files among them.
READ_FAULTS = (
    OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def preset_class(path: str | Path) -> str | None:
    """Returns the class of the model whose directory, or `.keras` file, this is.

    `None` if tfde did not write it.
    """
    module, name = _named_class(path)
    return name if module.startswith("tfde.") else None


def _named_class(path: str | Path) -> tuple[str, str]:
    """Returns module and name of the class that a directory or file says it is of; "" if none."""
    try:
        if is_keras_file(path):
            with zipfile.ZipFile(path) as file:
                record = json.loads(file.read(CONFIG_FILE))
        else:
            record = read_json_file(Path(path) / CONFIG_FILE)
    except READ_FAULTS:
        return "", ""
    named = isinstance(record, dict) and "class_name" in record
    return (str(record.get("module")), str(record["class_name"])) if named else ("", "")


def is_for_from_preset(path: str | Path) -> bool:
    """Returns whether `from_preset` is to load `path`: a model directory, or any `.keras` file."""
    return preset_class(path) is not None or is_keras_file(path)


def is_preset(path: str | Path) -> bool:
    """Returns whether `path` is a model that `DualEncoder.save_to_preset` or `save` wrote."""
    return preset_class(path) == DUAL_ENCODER


def check_class(path: str | Path, class_name: str) -> None:
    """Finds what is no model of a class.

    Raises:
        CorruptError: it is no model directory or file of tfde, or that of another class.
    """
    module, found = _named_class(path)
    if found != class_name or not module.startswith("tfde."):
        own = found and is_keras_file(path) and not module.startswith(("tfde.", "keras"))
        how = ", which keras.saving.load_model reads where it is registered" if own else ""
        if class_name == DUAL_ENCODER and found in _INSTEAD:
            how = f"; {_INSTEAD[found]}"
        if not found:
            other = "; from_backbone reads the checkpoints of other libraries, and presets"
            how = hint_of_run(path) or other
        raise CorruptError(
            f"{path}: not a tfde model directory or .keras file (a {CONFIG_FILE} of class"
            f" {class_name} is expected). Received: {found or 'none'}{how}"
        )


def read_config(directory: str | Path, class_name: str, description: type) -> dict[str, Any]:
    """Returns the configuration of the model in a model directory.

    Args:
        directory: The model directory.
        class_name: Class that the model must have.
        description: Dataclass that describes such a model; its fields must be there, but for
            those that were added later.

    Raises:
        CorruptError: it is no such directory, or that of a model of another class, or another
            version of tfde wrote it.
    """
    check_class(directory, class_name)
    path = Path(directory) / CONFIG_FILE
    record = read_json_file(path)
    config = record.get("config")
    if not isinstance(config, dict):
        raise CorruptError(f"{path}: must hold the object `config`.")
    backbone = config.get("backbone")
    kind = backbone.get("kind") if isinstance(backbone, dict) else None
    if kind not in BACKBONES and _REGISTERED_BY in record:
        raise ConfigError(
            f"{directory}: a backbone of kind {kind!r} is not known here: import"
            f" {record[_REGISTERED_BY]}, or what else calls tfde.register_backbone for it, first."
        )
    fields = [field.name for field in dataclasses.fields(description)]
    # What a later version describes has its default in what an earlier one wrote.
    if set(fields) - set(config) - _LATER or set(config) - set(fields):
        raise CorruptError(
            f"{path}: `config` must have the fields {', '.join(fields)}; another version of tfde"
            f" wrote it. Received: {', '.join(config) or 'none'}"
        )
    return config


def write_config(
    directory: Path, model: keras.Model, config: Mapping[str, Any], *, fingerprint: str
) -> None:
    """Writes `config.json`, `metadata.json` and `README.md` of a model.

    Args:
        directory: Where.
        model: Gives its class, its `preprocessor`, and the number of its parameters.
        config: Its configuration as JSON values.
        fingerprint: Its fingerprint.
    """
    # Of a class of somebody's own that derives from it, what `from_preset` of ours can read.
    kind = next(cls for cls in type(model).__mro__ if cls.__module__.startswith("tfde."))
    record = {"module": kind.__module__, "class_name": kind.__name__, "config": config}
    module = BACKBONES[config["backbone"]["kind"]].__module__
    if not module.startswith("tfde."):
        record[_REGISTERED_BY] = module
    metadata = {
        "tfde_version": __version__,
        "keras_version": keras.__version__,
        "parameter_count": sum(math.prod(weight.shape) for weight in model.weights),
        "date_saved": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d@%H:%M:%S"),
        "fingerprint": fingerprint,
    }
    for name, value in ((CONFIG_FILE, record), (METADATA_FILE, metadata)):
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, "utf-8")
    texts = dataclasses.asdict(model.preprocessor.text_config)
    del texts["buckets"]
    (directory / CARD_FILE).write_text(model_card(kind, config, texts, metadata), "utf-8")


def towers_to_mapping(config: TowersConfig) -> dict[str, Any]:
    """Returns the JSON form of a towers description."""
    value = {**dataclasses.asdict(config), "backbone": backbone_to_mapping(config.backbone)}
    for name in ("lora", "pooling_layer", "projection_layer", "encode_before_projection"):
        if not value[name]:  # as before there was such a thing, fingerprints too
            del value[name]
    return value


def towers_from_mapping(value: Mapping[str, Any]) -> TowersConfig:
    """Returns the towers description that `towers_to_mapping` wrote.

    Raises:
        ConfigError: a field is unknown.
    """
    value = dict(value)
    value["backbone"] = backbone_from_mapping(value["backbone"])
    value["sharing"] = Sharing.of(value["sharing"])
    value["pooling"] = tuple(value["pooling"])
    value["trained_dims"] = tuple(value.get("trained_dims", ()))
    if value.get("lora") is not None:
        value["lora"] = config_from_mapping(LoraConfig, value["lora"], "lora")
    value["projection"] = tuple(
        config_from_mapping(DenseConfig, step, "projection") for step in value["projection"]
    )
    return config_from_mapping(TowersConfig, value, "config")
