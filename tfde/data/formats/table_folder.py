"""Folders of tables as the library `datasets` saves them, and as its hub keeps them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tfde.data.formats.csv_rows import ENDINGS, ending
from tfde.errors import ConfigError, DataError
from tfde.storage.json_file import read_json_file

SPLITS = {"train": "train", "dev": "dev", "validation": "dev", "val": "dev", "test": "test"}
_NO_TABLES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


def split_of_name(name: str) -> str:
    """Returns the split that a name begins with or holds as a word; "" for none."""
    words = re.findall(r"[a-z]+", name.lower())
    for word, split in SPLITS.items():
        if name.startswith(split) or word in words:  # not val, with which values begin
            return split
    return ""


def table_files(folder: Path) -> list[tuple[Path, str]]:
    """Returns the tables of a folder in their order, each with its split ("" for none).

    A folder that `save_to_disk` wrote says itself which files and splits it has. In any other, all
    tables are taken, and the name of a file, or else of a folder above it, tells the split.

    Raises:
        ConfigError: no table, or some have a split and some have none.
        DataError: `dataset_dict.json` or `state.json` is damaged, or rows were selected that the
            files do not tell apart.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _listed(folder / "dataset_dict.json", "splits")
        files = [
            (file, SPLITS.get(split, split))
            for split in map(str, splits)
            for file, _ in table_files(folder / split)
        ]
    elif (folder / "state.json").is_file():
        if _listed(folder / "state.json", "_indices_data_files"):
            rule = "must be of a dataset whose rows are written out (`flatten_indices`)."
            raise DataError(folder / "state.json", None, rule)
        parts = _listed(folder / "state.json", "_data_files")
        files = [(folder / str(part.get("filename")), "") for part in parts]
    else:
        files = [
            (file, _split_within(folder, file))
            for file in sorted(folder.rglob("*"))
            if ending(file) in ENDINGS and file.name not in _NO_TABLES and file.is_file()
        ]
    if not files:
        raise ConfigError(
            f"{folder}: `input` must be a folder that holds {', '.join(ENDINGS[:-1])} or"
            f" {ENDINGS[-1]} files."
        )
    without = [file for file, split in files if not split]
    if without and len(without) < len(files):
        raise ConfigError(
            f"{folder}: the names of all files or of none must tell a split; give files one by one."
            f" Received: {without[0].relative_to(folder)}"
        )
    return files


def _split_within(folder: Path, file: Path) -> str:
    names = reversed(file.relative_to(folder).parts)
    return next(filter(None, map(split_of_name, names)), "")


def _listed(path: Path, name: str) -> list[Any]:
    record = read_json_file(path)
    value = record.get(name) if isinstance(record, dict) else None
    if value is None and name != "splits":
        return []
    if not isinstance(value, list):
        raise DataError(path, None, f"field {name!r} must be a list.", value)
    return value
