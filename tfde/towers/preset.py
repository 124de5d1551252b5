"""The model directory: keras-hub's preset layout with our configuration in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfde.config import (
    DenseConfig,
    Sharing,
    TowersConfig,
    backbone_from_mapping,
    backbone_to_mapping,
)
from tfde.config import from_mapping as config_from_mapping
from tfde.errors import CorruptError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
METADATA_FILE = "metadata.json"
CLASS_NAME = "DualEncoder"


def is_preset(path: str | Path) -> bool:
    """Returns whether `path` is a model directory that `DualEncoder.save_to_preset` wrote."""
    try:
        record = json.loads((Path(path) / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("class_name") == CLASS_NAME


def read_config(directory: Path) -> TowersConfig:
    """Returns the description of the towers in a model directory.

    Raises:
        CorruptError: it is no such directory.
    """
    if not is_preset(directory):
        raise CorruptError(
            f"{directory}: not a tfde model directory (a {CONFIG_FILE} of class {CLASS_NAME} is"
            " expected)."
        )
    record = json.loads((directory / CONFIG_FILE).read_text("utf-8"))
    return towers_from_mapping(record["config"])


def write_config(directory: Path, config: TowersConfig, metadata: Mapping[str, Any]) -> None:
    """Writes `config.json` and `metadata.json`."""
    record = {
        "module": "tfde.towers.dual_encoder",
        "class_name": CLASS_NAME,
        "config": towers_to_mapping(config),
    }
    for name, value in ((CONFIG_FILE, record), (METADATA_FILE, dict(metadata))):
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, "utf-8")


def towers_to_mapping(config: TowersConfig) -> dict[str, Any]:
    """Returns the JSON form of a towers description."""
    return {**dataclasses.asdict(config), "backbone": backbone_to_mapping(config.backbone)}


def towers_from_mapping(value: Mapping[str, Any]) -> TowersConfig:
    """Returns the towers description that `towers_to_mapping` wrote.

    Raises:
        ConfigError: a field is unknown.
    """
    value = dict(value)
    value["backbone"] = backbone_from_mapping(value["backbone"])
    value["sharing"] = Sharing.of(value["sharing"])
    value["pooling"] = tuple(value["pooling"])
    value["projection"] = tuple(
        config_from_mapping(DenseConfig, step, "projection") for step in value["projection"]
    )
    return config_from_mapping(TowersConfig, value, "config")
