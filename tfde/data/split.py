"""Splits for the study of few labels: by query, with near duplicates on one side.

Every choice is by a hash of seed and query id: it depends neither on the order of the queries nor
on the ratio, so the queries of a small split that are not for testing are so in a larger one with
the same seed, and the test queries of the larger one are test queries of the small one, but for
groups of near duplicates that one of the two had no room for. Which of
them are dev queries is chosen in each split anew: do not tune on the dev queries of one what was
trained on the train queries of another.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import NEARLY_EQUAL, near_duplicate_groups
from tfde.data.qrels import with_relevant, write_qrels
from tfde.errors import ConfigError, require
from tfde.storage.atomic import (
    atomic_directory,
    atomic_file,
    refuse_existing,
    refuse_source,
)
from tfde.storage.files import link_or_copy
from tfde.storage.json_lines import id_field, read_json_lines, write_json_lines
from tfde.types import Qrels, Query

SPLIT_FILE = "split.json"
WITHOUT_RELEVANT = "queries_without_a_relevant_document"
FORMAT = 1


def split_by_ratio(
    dataset: str | Path,
    output: str | Path,
    *,
    ratio: tuple[int, int],
    dev_share: float = 0.1,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a dataset directory whose splits divide all judged queries of another one anew.

    No query of one split equals or nearly equals a query of another. Queries of which no document
    is relevant teach and measure nothing: they are left out and counted. The documents are shared.

    Args:
        dataset: The dataset directory; the queries of all its splits are thrown together.
        output: The new dataset directory.
        ratio: Train to test, such as (1, 99); the dev queries are taken from train.
        dev_share: Share of train that is held out as dev, in [0, 1); 0 makes no dev split.
        seed: At least 0.
        overwrite: Whether a directory that holds something is replaced.

    Returns:
        What `split.json` says: seed, ratio, counts, checksums.

    Raises:
        ConfigError: an impossible value, a split without queries, or an output that is not empty.
        DataError: the dataset breaks a rule.

    Source:
        Chang et al. 2020, section 4.1 (1/99, 5/95 and 80/20; 10 % of train for validation). The
        near duplicates are our own care.
    """
    _check_seed(seed)
    _check_ratio(ratio)
    require(0 <= dev_share < 1, "dev_share", "in [0, 1)", dev_share)
    source = DatasetDirectory(dataset)
    refuse_existing(output, overwrite=overwrite)
    refuse_source(output, source.path, "the dataset that is split")
    source.validate()
    judged = source.all_qrels()
    if not judged:
        raise ConfigError(f"{source.path}: no split has a judgement; there is nothing to divide.")
    relevant = with_relevant(judged)
    queries = [query for query in source.queries() if query.query_id in relevant]
    groups = _groups(queries)
    total = len(queries)
    train, test = _fill(groups, _nearest(total * Fraction(ratio[0], sum(ratio))), seed, "train")
    dev_target = _nearest(sum(map(len, train)) * Fraction(str(dev_share)))
    dev, train = _fill(train, dev_target, seed, "dev")
    splits = {"train": train, "dev": dev, "test": test}
    if not dev_share:
        del splits["dev"]
    for name, part in splits.items():
        if not part:
            raise ConfigError(
                f"{source.path}: {total} queries leave none for {name}."
                f" Received: ratio {ratio[0]}/{ratio[1]}, dev_share {dev_share}"
            )
    side = {query_id: name for name, part in splits.items() for group in part for query_id in group}
    qrels: dict[str, Qrels] = {name: {} for name in splits}
    for query in queries:
        qrels[side[query.query_id]][query.query_id] = judged[query.query_id]
    about = {"ratio": f"{ratio[0]}/{ratio[1]}", "dev_share": dev_share, "seed": seed}
    several = [group for group in groups if len(group) > 1]
    counts = {
        "near_duplicate_groups": len(several),
        "queries_in_near_duplicate_groups": sum(map(len, several)),
        WITHOUT_RELEVANT: len(judged) - len(relevant),
    }
    return _write(source, Path(output), qrels, {}, about, counts, overwrite=overwrite)


def split_train_share(
    dataset: str | Path,
    output: str | Path,
    *,
    share: float,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a dataset directory with a share of the train queries of another one.

    The other splits stay as they are. Train queries that equal or nearly equal a query of another
    split are not drawn, nor are those of which no document is relevant.

    Args:
        dataset: The dataset directory.
        output: The new dataset directory.
        share: Share of the train queries, in (0, 1].
        seed: At least 0.
        overwrite: Whether a directory that holds something is replaced.

    Returns:
        What `split.json` says: seed, share, counts, checksums.

    Raises:
        ConfigError: an impossible value, no query left, or an output that is not empty.
        DataError: the dataset breaks a rule.

    Source:
        Ni et al. 2021 (10 % of the training queries of MS MARCO).
    """
    _check_seed(seed)
    require(0 < share <= 1, "share", "in (0, 1]", share)
    source = DatasetDirectory(dataset)
    refuse_existing(output, overwrite=overwrite)
    refuse_source(output, source.path, "the dataset that is split")
    source.validate()
    every = source.qrels("train")
    judged = with_relevant(every)
    others = {
        query_id for split in source.splits if split != "train" for query_id in source.qrels(split)
    }
    wanted = set(judged) | others
    queries = [query for query in source.queries() if query.query_id in wanted]
    free = [
        query_id for group in _groups(queries) if others.isdisjoint(group) for query_id in group
    ]
    target = _nearest(len(judged) * Fraction(str(share)))
    chosen = set(sorted(free, key=_order(seed, "share"))[:target])
    if not chosen:
        raise ConfigError(
            f"{source.path}: {len(judged)} train queries leave none. Received: share {share}"
        )
    train = {query_id: judged[query_id] for query_id in judged if query_id in chosen}
    kept = {split: source.qrels_file(split) for split in source.splits if split != "train"}
    about = {"share": share, "seed": seed}
    counts = {
        "train_queries_near_another_split": len(set(judged) - set(free)),
        WITHOUT_RELEVANT: len(every) - len(judged),
    }
    return _write(source, Path(output), {"train": train}, kept, about, counts, overwrite=overwrite)


def _groups(queries: Sequence[Query]) -> list[list[str]]:
    """Returns the ids of nearly equal queries together, each list sorted."""
    groups: dict[int, list[str]] = {}
    for query, group in zip(
        queries, near_duplicate_groups(query.text for query in queries).tolist(), strict=True
    ):
        groups.setdefault(group, []).append(query.query_id)
    return [sorted(group) for group in groups.values()]


def _order(seed: int, purpose: str) -> Callable[[str], bytes]:
    def key(query_id: str) -> bytes:
        return hashlib.blake2b(f"{seed} {purpose} {query_id}".encode(), digest_size=16).digest()

    return key


def _fill(
    groups: Iterable[list[str]], target: int, seed: int, purpose: str
) -> tuple[list[list[str]], list[list[str]]]:
    """Returns groups with `target` queries together (as near as whole groups can), and the rest."""
    order = _order(seed, purpose)
    chosen: list[list[str]] = []
    rest: list[list[str]] = []
    count = 0
    for group in sorted(groups, key=lambda group: order(group[0])):
        if count + len(group) <= target:
            chosen.append(group)
            count += len(group)
        else:
            rest.append(group)
    return chosen, rest


def _nearest(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def _write(
    source: DatasetDirectory,
    output: Path,
    qrels: dict[str, Qrels],
    kept: dict[str, Path],
    about: dict[str, Any],
    counts: dict[str, int],
    *,
    overwrite: bool,
) -> dict[str, Any]:
    with atomic_directory(output, overwrite=overwrite) as temporary:
        for name in ("corpus.jsonl", "queries.jsonl", "answers.jsonl"):
            for path in sorted(source.path.glob(f"{name}*")):
                link_or_copy(path, temporary / path.name)
        for split, judged in qrels.items():
            write_qrels(temporary / "qrels" / f"{split}.tsv", judged)
        for path in kept.values():
            link_or_copy(path, temporary / "qrels" / path.name)
        _divide_pairs(source, temporary / "pairs", qrels, kept)
        written = DatasetDirectory(temporary)
        record = {
            "format": FORMAT,
            "dataset": source.name,
            **about,
            "nearly_equal": NEARLY_EQUAL,
            "queries": {split: len(written.qrels(split)) for split in written.splits},
            "counts": counts,
            "sha256": written.checksums(),
        }
        with atomic_file(temporary / SPLIT_FILE) as file:
            file.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return record


def _divide_pairs(
    source: DatasetDirectory, output: Path, qrels: dict[str, Qrels], kept: Collection[str]
) -> None:
    """Writes the training pairs of each split's queries; those of the kept splits stay as is."""
    divided = [source.pair_file(name) for name in source.pair_splits if name not in kept]
    for path in (source.pair_file(name) for name in source.pair_splits if name in kept):
        output.mkdir(exist_ok=True)
        link_or_copy(path, output / path.name)
    for split, judged in qrels.items():
        records = (
            record
            for path in divided
            for line, record in read_json_lines(path)
            if id_field(path, line, record, "query_id") in judged
        )
        first = next(records, None)
        if first is not None:
            output.mkdir(exist_ok=True)
            write_json_lines(output / f"{split}.jsonl.gz", chain([first], records))


def _check_seed(seed: int) -> None:
    require(seed >= 0, "seed", "at least 0", seed)


def _check_ratio(ratio: tuple[int, int]) -> None:
    holds = len(ratio) == 2 and min(ratio) >= 1
    require(holds, "ratio", "two whole numbers above 0", ratio)
