"""The pairs that a matcher's run names: read, checked, parted, and their checksums."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.config.matching import MatchDataConfig, MatchRun
from tfde.data.formats.csv_rows import ending
from tfde.data.pairs.labelled import LabelledPairs, ranked_pairs, read_labelled_pairs
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, require
from tfde.training.run_record import checkpoint_checksums, checksum


def read_parts(run: MatchRun) -> dict[str, LabelledPairs]:
    """Reads what a run trains, validates and tests with.

    Returns:
        `data`, `validation`, `test` -> pairs, as far as the run names them.

    Raises:
        ConfigError, DataError: the data are missing, damaged, or of another kind.
    """
    names: Sequence[str] | None = run.labels or None
    parts = {}
    for part in ("data", "validation", "test"):
        config = getattr(run, part)
        if config is not None:
            parts[part] = read_part(config, run, names=names)
            names = names or parts[part].names or None
            labels = parts[part].labels
            if part != "data" and run.objective != "classification" and np.ptp(labels) == 0:
                raise ConfigError(
                    f"`{part}` must have pairs with different labels, which its measures compare."
                    f" Received: {len(labels)} of {labels[0]:g}"
                )
    return parts


def read_part(
    config: MatchDataConfig, run: MatchRun, *, names: Sequence[str] | None
) -> LabelledPairs:
    """Reads one of a run's sets of pairs.

    Args:
        config: Where they are and which of them.
        run: Says what the labels are.
        names: The labels that there are, where they are known.

    Raises:
        ConfigError, DataError: the data are missing, damaged, or of another kind.
    """
    path = Path(config.data)
    if path.is_dir():
        pairs = read_labelled_pairs(
            path, config.split, names=names, values=run.objective == "regression"
        )
        if run.objective == "ranking":
            raise ConfigError(
                f"{path}: objective ranking needs a pair file with negatives, not a folder of"
                " labelled pairs."
            )
    else:
        if ending(path) in (".tsv", ".csv", ".parquet"):
            raise ConfigError(
                f"{path}: a table of labelled pairs must stand as SPLIT.tsv in a folder, which is"
                " what is named here; tfde convert --format sentence-pairs makes it."
            )
        if run.objective == "regression":
            raise ConfigError(f"{path}: objective regression needs a folder of labelled pairs.")
        table = read_pairs(path, split=config.split, dataset=config.dataset)
        pairs = ranked_pairs(table, negatives=config.negatives, path=path)
        if run.labels and len(run.labels) == 2:
            pairs = dataclasses.replace(pairs, names=tuple(run.labels))
        elif names is not None and tuple(names) != pairs.names:
            raise ConfigError(
                f"{path}: a pair file's labels are 0 and 1 (right), those of the training pairs"
                f" {', '.join(names)}; `labels` says what wrong and right pairs are called."
            )
    if config.held_out:
        pairs = _part_of(pairs, config, seed=run.seed)
    pairs = pairs.limited(config.limit, seed=run.seed)
    if run.objective != "ranking" and pairs.group_size > 1:
        pairs = dataclasses.replace(pairs, group_size=1)
    return pairs


def input_checksums(run: MatchRun) -> dict[str, Any]:
    """Returns path -> checksum of all that a run reads: pairs, checkpoints, teachers."""
    taught_by = () if run.teaching is None else run.teaching.models
    found: dict[str, Any] = {
        **checkpoint_checksums(run.model.backbone, run.model.tokenizer, *taught_by)
    }
    for name in ("data", "validation", "test"):
        part = getattr(run, name)
        if part is None:
            continue
        path = Path(part.data)
        files = sorted(path.glob(f"{part.split}.tsv*")) if path.is_dir() else [path]
        found.update({str(file): checksum(file) for file in files})
        if part.dataset is not None:
            found[part.dataset] = checksum(Path(part.dataset))
    return json.loads(json.dumps(found))


def _part_of(pairs: LabelledPairs, config: MatchDataConfig, *, seed: int) -> LabelledPairs:
    groups = pairs.first[:: pairs.group_size]
    places = {text: place for place, text in enumerate(dict.fromkeys(groups))}
    order = np.random.Generator(np.random.PCG64([seed, 1])).permutation(len(places))
    number = math.ceil(config.held_out * len(places))
    chosen = set(order[:number] if config.part == "held_out" else order[number:])
    require(bool(chosen), "held_out", f"such that some of {len(places)} are left", config.held_out)
    return pairs.taken(np.array([i for i, text in enumerate(groups) if places[text] in chosen]))
