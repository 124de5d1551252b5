"""`run.json`: what was run, on which data, with which versions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfde.config import TrainRun
from tfde.data.atomic import atomic_file
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError

RUN_FILE = "run.json"
CHECKPOINT_FILE = "checkpoint.safetensors"
_PACKAGES = (
    "tfde",
    "tensorflow",
    "tensorflow-text",
    "keras",
    "keras-hub",
    "tensorflow-recommenders",
)


def open_output(output: Path, run: TrainRun) -> None:
    """Writes `run.json` into a new directory, or checks that the one there is of the same run.

    Another run that never came to its first checkpoint has nothing to lose and is replaced.

    Raises:
        ConfigError: the directory holds another run, the same run on other data, or no run.
    """
    record = json.loads(json.dumps({"run": dataclasses.asdict(run), "data": _checksums(run)}))
    path = output / RUN_FILE
    if path.exists():
        older = json.loads(path.read_text("utf-8"))
        odd = _first_difference({key: older.get(key) for key in record}, record)
        if not odd:
            return
        if (output / CHECKPOINT_FILE).exists():
            raise ConfigError(
                f"{output} holds another run ({odd}); choose another output, or remove it."
            )
        shutil.rmtree(output)
    elif output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty and holds no run; choose another output.")
    output.mkdir(parents=True, exist_ok=True)
    record["versions"] = {name: version(name) for name in _PACKAGES}
    record["machine"] = {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "devices": [device.name for device in tf.config.list_physical_devices()],
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _first_difference(old: Any, new: Any, where: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            odd = _first_difference(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
            if odd:
                return odd
        return ""
    return "" if old == new else f"{where} was {old!r}, is {new!r}"


def _checksums(run: TrainRun) -> dict[str, Any]:
    """Path -> checksums of everything the run reads."""
    paths: list[str] = []
    for stage in run.stages.values():
        paths += [path for path in (stage.data, stage.dataset) if path is not None]
        if stage.validation is not None:
            paths.append(stage.validation.dataset)
    return {path: _checksum(Path(path)) for path in dict.fromkeys(paths)}


def _checksum(path: Path) -> Any:
    if path.is_dir():
        return DatasetDirectory(path).checksums()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
