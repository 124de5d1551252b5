"""`run.json`: what was run, on which data, with which versions."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tfde.config.training import TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError, OtherRunError
from tfde.evaluation.measures import needs_answers
from tfde.storage.atomic import atomic_file, directory_lock, make_directories, remove_left
from tfde.storage.files import sha256
from tfde.storage.resumable_file import first_difference

RUN_FILE = "run.json"
TABLE_DATA, TABLE_RECIPE = "data", "recipe.yaml"
CHECKPOINT_FILE = "checkpoint.safetensors"
HISTORY_FILE = "history.jsonl"
VOCABULARY_FILE = "vocabulary.model"
PAGES = "pages"  # pages cut into sentences
NEGATIVES = "negatives"  # pair files of refreshed negatives, by stage
TOPICS = "topics"  # clusters that stages found, by stage
# Of a checkpoint, what decides over nothing and tells when it was saved.
_TELLING = {"README.md", "metadata.json", ".gitattributes"}
# All that a run writes before its first checkpoint.
_BEFORE_CHECKPOINT = {
    RUN_FILE,
    HISTORY_FILE,
    VOCABULARY_FILE,
    PAGES,
    NEGATIVES,
    TOPICS,
    "tensorboard",
}
_PACKAGES = (
    "tfde",
    "tensorflow",
    "tensorflow-text",
    "keras",
    "keras-hub",
    "tensorflow-recommenders",
)


@contextlib.contextmanager
def open_output(output: Path, run: Any, data: Mapping[str, Any]) -> Iterator[None]:
    """Writes `run.json` into a new directory, or checks that the one there is of the same run.

    The same run reads the same bytes, wherever they lie. Another run that never came to its first
    checkpoint has nothing to lose and is replaced. While the context lasts, no other process can
    open the directory.

    Args:
        output: The directory.
        run: The description, a dataclass.
        data: Checksums of all that it reads.

    Raises:
        OtherRunError: the directory holds another run, or the same run on other data.
        ConfigError: it holds something that is no run; or another process trains into it.
    """
    record = json.loads(json.dumps({"run": dataclasses.asdict(run), "data": dict(data)}))
    path = output / RUN_FILE
    names = _names(output)
    if names and not _is_run(path):
        raise ConfigError(f"{output} is not empty and holds no run; choose another output.")
    make_directories(output)
    with directory_lock(output, "training into it"):
        before = _with_defaults(_read(path), run) if names else record
        same = _without_places(before) == _without_places(record)
        odd = "" if same else first_difference(before, record)
        if odd and has_progress(output):
            raise OtherRunError(
                f"{output} holds another run ({odd}); choose another output, or remove it."
            )
        if odd:
            for name in names:
                _remove(output / name)
        remove_left(output)
        if odd or not names:
            _write(path, record)
        yield


def has_progress(output: Path) -> bool:
    """Returns whether a run's directory holds what another run must not replace."""
    return bool(_names(output) - _BEFORE_CHECKPOINT)


def _names(output: Path) -> set[str]:
    """Returns what stands there, without our lock, unfinished files, and a table's data."""
    names = {file.name for file in output.iterdir()} if output.exists() else set()
    return {name for name in names - {TABLE_DATA, TABLE_RECIPE} if not name.startswith(".")}


def _is_run(path: Path) -> bool:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and {"run", "data", "versions"} <= set(record)


def _read(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text("utf-8"))
    return {name: record[name] for name in ("run", "data")}


def _without_places(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with what a run reads in place of where that lies."""
    sums = record["data"]

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: read(part) for name, part in value.items()}
        if isinstance(value, list):
            return [read(part) for part in value]
        if not isinstance(value, str):
            return value
        parts = [value] if value in sums else [part.strip() for part in value.split(",")]
        return [sums[part] for part in parts] if set(parts) <= set(sums) else value

    found = sorted(json.dumps(value, sort_keys=True) for value in sums.values())
    return {"run": read(record["run"]), "data": found}


def _with_defaults(record: dict[str, Any], run: Any) -> dict[str, Any]:
    """Returns the record of an earlier version with what it could not name: new fields."""
    return {**record, "run": _filled(record["run"], run)}


def _filled(old: Any, new: Any) -> Any:
    """Returns a description as JSON's values, its missing fields with their defaults."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {name: _filled(value, new.get(name)) for name, value in old.items()}
    if isinstance(new, list | tuple) and isinstance(old, list) and len(old) == len(new):
        return [_filled(*pair) for pair in zip(old, new, strict=True)]
    if not dataclasses.is_dataclass(new) or not isinstance(old, dict):
        return old
    filled = {name: _filled(value, getattr(new, name, None)) for name, value in old.items()}
    for field in dataclasses.fields(new):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name not in old and default is not dataclasses.MISSING:
            filled[field.name] = json.loads(json.dumps(default, default=dataclasses.asdict))
    return filled


def _write(path: Path, record: dict[str, Any]) -> None:
    import tensorflow as tf

    record = {
        **record,
        "versions": {name: version(name) for name in _PACKAGES},
        "machine": {
            "python": platform.python_version(),
            "processor": platform.machine(),
            "cpus": os.cpu_count(),
            "devices": [device.name for device in tf.config.list_physical_devices()],
        },
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def checksum(path: Path) -> Any:
    """Returns the sha256 of a file, or of each file of a dataset directory by its name.

    Of a directory without its answers: `answers_checksum`.
    """
    if path.is_dir():
        return DatasetDirectory(path).checksums()
    return sha256(path)


def answers_checksum(
    dataset: str, *, checksum_of: Callable[[Path], Any] = checksum
) -> dict[str, Any]:
    """Returns path -> checksum of the answers of a dataset directory."""
    path = DatasetDirectory(dataset).file("answers.jsonl")
    return {str(path): checksum_of(path)}


def checkpoint_files(path: Path) -> list[Path]:
    """Returns a file, or those of a directory that decide over the model it holds.

    Its card and the date at which it was saved do not: a start that is trained again to the same
    weights is the same start.
    """
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in _TELLING)


def checkpoint_checksums(*named: Any) -> dict[str, str]:
    """Returns path -> sha256 of what a run starts from, as far as it lies on this machine.

    Args:
        named: Checkpoints and tokenizers as a run names them: a path, or two with a comma between.
            Names that are no path, sizes of random weights and `None` have no checksum.
    """
    found = {}
    for name in named:
        if not isinstance(name, str):
            continue
        for path in [name] if Path(name).exists() else map(str.strip, name.split(",")):
            if files := checkpoint_files(Path(path)):
                lines = [f"{file.relative_to(path)} {checksum(file)}\n" for file in files]
                found[path] = hashlib.sha256("".join(lines).encode()).hexdigest()
    return found


def data_checksums(
    run: TrainRun, *, checksum_of: Callable[[Path], Any] = checksum
) -> dict[str, Any]:
    """Returns path -> checksums of all data the run reads.

    Args:
        run: The run, its paths expanded.
        checksum_of: Another `checksum`, such as one that remembers.
    """
    found = {path: checksum_of(Path(path)) for path in dict.fromkeys(data_paths(run))}
    for stage in run.stages.values():
        for measured in stage.validation.measured().values() if stage.validation else ():
            if needs_answers(measured.measures):
                found |= answers_checksum(measured.dataset, checksum_of=checksum_of)
    return found


def data_paths(run: TrainRun) -> list[str]:
    """Returns the paths of all data the run reads, as the run names them; some may come twice."""
    paths: list[str] = []
    for stage in run.stages.values():
        for source in stage.sources:
            named = (source.data, source.dataset, source.pages)
            paths += [path for path in named if path is not None]
        if stage.topic_clusters is not None:
            paths.append(stage.topic_clusters)
        if stage.validation is not None:
            paths += [measured.dataset for measured in stage.validation.measured().values()]
    return paths
