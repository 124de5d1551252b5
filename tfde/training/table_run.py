"""From a table of questions and answers to a data set and a recipe, for `tfde train --table`."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tfde.checkpoints.checkpoint_files import CheckpointFiles, check_checkpoint
from tfde.config.validation import GuardConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import columns as tables
from tfde.data.formats.beir import read_pair_file
from tfde.data.formats.csv_rows import table_files
from tfde.data.formats.records import Source
from tfde.data.split import WITHOUT_RELEVANT, split_by_ratio
from tfde.errors import ConfigError
from tfde.storage.atomic import LOCK, atomic_directory, directory_lock, temporary_directory
from tfde.storage.files import sha256
from tfde.storage.intake import Intake
from tfde.training.run_record import TABLE_DATA, TABLE_RECIPE, has_progress

_RATIO, _DEV_SHARE = (90, 10), 0.1
_BATCH_SIZE = 64
_EPOCHS = 3
_MOST_STEPS = 1000  # an hour of a few cores, for a model of MiniLM's size and short texts
_VALIDATIONS = 2  # between steps, beside the start's and those of two means with it
_MOST_QUERIES = 1000
_FEWEST_DOCUMENTS, _MOST_DOCUMENTS = 500, 3000  # between them a quarter as many as pairs
_FEWEST_PAIRS = 8
_STAGE = "stages.finetune"
_COMMENT = (
    "# Written by `tfde train --table`. Change it, and train by it: `tfde train --run`, another"
    " --output.\n"
)
_RECIPE = "recipe"  # in `asked`, the checksum of the rest
_WRITTEN = {"corpus.jsonl.gz", "queries.jsonl.gz", "split.json"}
_WRITTEN |= {f"qrels/{split}.tsv" for split in ("train", "dev", "test")}
_PAIRS = {f"pairs/{split}.jsonl.gz" for split in ("train", "dev", "test")}  # with negatives
_ASKED = "# asked: "  # and what the recipe was written for, as JSON


def prepare_table(
    table: str | Path,
    output: str | Path,
    *,
    model: str,
    guards: Mapping[str, str],
    columns: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    intake: Intake | None = None,
) -> Path:
    """Writes a table as a data set, split 81/9/10, and a recipe for it; or finds both there.

    Args:
        table: A table as `tfde convert --format sentence-transformers` takes it, or a folder of
            tables that have no splits of their own.
        output: Directory of the run, new: gets `data/` and `recipe.yaml`, whole or not at all. One
            in which training has nothing to lose yet is made anew where something else is asked for
            now.
        model: The start, as `model.backbone` of a recipe.
        guards: Name -> dataset directory away from home, scored on its test split.
        columns: As `tfde convert --columns`.
        changes: Place in the recipe, such as `stages.finetune.steps`, -> value.
        intake: What becomes of bad rows; `None` stops at the first. It counts what is left out.

    Returns:
        The recipe. It is left as it is where it was written for the same.

    Raises:
        ConfigError: no such table, model or guard; `output` holds something else, or a run that
            was begun with something else; too few rows to split.
        DataError: as `tfde.data.formats.columns.read`.
    """
    table, output, intake = Path(table), Path(output), intake or Intake()
    files = _files(table)
    check_checkpoint(model, trains=True)
    if not Path(model).exists():  # asks the hubs before anything is written
        for name in model.split(","):
            CheckpointFiles(name.strip()).find("modules.json")
    for path in guards.values():
        DatasetDirectory(path).qrels_file(GuardConfig(path).split)
    asked: dict[str, Any] = {
        "table": " ".join(sha256(file) for file in files),
        "model": model,
        "guards": dict(guards),
        "columns": list(columns or ()),
        "changes": dict(changes or {}),
    }
    recipe = output / TABLE_RECIPE
    before = _asked_before(recipe)
    if {**before, _RECIPE: None} == {**asked, _RECIPE: None}:
        _check_place(output, before)
        return recipe
    with contextlib.ExitStack() as held:
        if before:
            held.enter_context(directory_lock(output, "training into it"))
            if has_progress(output) or not _is_as_written(output, before):
                name = next(name for name in asked if before.get(name) != asked[name])
                value = str(table) if name == "table" else asked[name]
                if name == "changes":
                    old, new = before[name], asked[name]
                    name = next(x for x in {**old, **new} if old.get(x) != new.get(x))
                    value = new.get(name)
                what = "`table`, or other rows in it" if name == "table" else f"`{name}`"
                raise ConfigError(
                    f"{output}: the run there was begun with another {what}; choose another output."
                    f" Received: {value!r}"
                )
        temporary = held.enter_context(atomic_directory(output, overwrite=bool(before)))
        data = temporary / TABLE_DATA
        with temporary_directory(data) as folder:
            rows = [Source("rows", file, "train") for file in files]
            records = tables.read(rows, intake, columns=columns)
            write_dataset(folder / "all", records, splits=["train"], intake=intake)
            try:
                record = split_by_ratio(folder / "all", data, ratio=_RATIO, dev_share=_DEV_SHARE)
            except ConfigError as error:
                reason = str(error).removeprefix(f"{folder / 'all'}: ")
                raise ConfigError(f"{table}: has too few questions: {reason}") from error
        intake.leave_out("questions without a relevant answer", record["counts"][WITHOUT_RELEVANT])
        qrels = DatasetDirectory(data).qrels("train")
        pairs = sum(grade > 0 for judged in qrels.values() for grade in judged.values())
        if pairs < _FEWEST_PAIRS:
            raise ConfigError(
                f"{table}: must leave at least {_FEWEST_PAIRS} pairs to train by, beside what is"
                f" held out to measure. Received: {pairs}"
            )
        size = (changes or {}).get(f"{_STAGE}.batch_size", 1)
        if isinstance(size, int) and size > pairs:
            raise ConfigError(
                f"{table}: `{_STAGE}.batch_size` must be at most the number of pairs to train by,"
                f" {pairs}. Received: {size}"
            )
        place = str(output / TABLE_DATA)
        negatives = _has_negatives(DatasetDirectory(data))
        described = describe_run(
            place, model, guards, pairs=pairs, negatives=negatives, changes=changes
        )
        text = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
        asked[_RECIPE] = hashlib.sha256(text.encode()).hexdigest()
        text = f"{_COMMENT}{_ASKED}{json.dumps(asked)}\n{text}"
        (temporary / TABLE_RECIPE).write_text(text, "utf-8")
    return recipe


def _has_negatives(data: DatasetDirectory) -> bool:
    """Whether a pair to train by has negatives; a column of them may be empty throughout."""
    if "train" not in data.pair_splits:
        return False
    return any(
        pair.negatives for pair in read_pair_file(data.pair_file("train"), "train", Intake())
    )


def _files(table: Path) -> list[Path]:
    if not table.exists():
        raise ConfigError(f"{table}: `table` must be a file or a folder that exists.")
    if not table.is_dir():
        return [table]
    files = table_files(table)
    for path, split in files:
        if split:
            raise ConfigError(
                f"{path}: `table` must be a folder of tables without splits, for it is split here;"
                " `tfde convert` keeps yours, and `tfde train --run` takes them."
                f" Received: the split {split!r}"
            )
    return [path for path, _ in files]


def _check_place(output: Path, before: Mapping[str, Any]) -> None:
    """Refuses a recipe of ours whose data are not those beside it: it was moved, or copied."""
    if f"{_STAGE}.data" in before["changes"] or not _is_as_written(output, before):
        return
    recipe = yaml.safe_load((output / TABLE_RECIPE).read_text("utf-8"))
    place, wanted = recipe["stages"]["finetune"]["data"], output / TABLE_DATA
    if Path(place).resolve() != wanted.resolve():
        raise ConfigError(
            f"{output / TABLE_RECIPE}: must name {wanted} as its data: give the command where the"
            " run was begun; one that was moved or copied goes nowhere, choose another output."
            f" Received: {place!r}"
        )


def _asked_before(recipe: Path) -> dict[str, Any]:
    """Returns what a recipe was written for; nothing where there is none of ours."""
    try:
        lines = recipe.read_text("utf-8").splitlines()
        asked = next(line for line in lines if line.startswith(_ASKED))
        found: dict[str, Any] = json.loads(asked.removeprefix(_ASKED))
    except (OSError, StopIteration, ValueError):
        return {}
    found.setdefault("changes", {})  # of a version that knew none
    return found


def _is_as_written(output: Path, before: Mapping[str, Any]) -> bool:
    """Whether the data and the recipe are ours, unchanged, and nothing hidden lies beside them."""
    text = (output / TABLE_RECIPE).read_text("utf-8")
    body = text.partition(_ASKED)[2].partition("\n")[2]
    data = output / TABLE_DATA
    files = {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()}
    hidden = {path.name for path in output.iterdir() if path.name.startswith(".")}
    return (
        hashlib.sha256(body.encode()).hexdigest() == before.get(_RECIPE)
        and files - _PAIRS == _WRITTEN
        and hidden <= {LOCK}
    )


def describe_run(
    place: str,
    model: str,
    guards: Mapping[str, str],
    *,
    pairs: int,
    negatives: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a recipe for a data set, as a mapping.

    Args:
        place: Where the data set lies.
        model: The start.
        guards: Name -> dataset directory away from home.
        pairs: How many it has to train by.
        negatives: Whether it has a pair file with negatives to train by.
        changes: As of `prepare_table`. Other numbers follow those of steps, epochs, pairs and a
            batch, and what does not go with a change is left out.

    Raises:
        ConfigError: a place of `changes` is inside of a value.
    """
    changes = copy.deepcopy(dict(changes or {}))
    given = {place.removeprefix(f"{_STAGE}."): value for place, value in changes.items()}
    pairs = min(pairs, _number(given.get("limit"), pairs))
    batch_size = _number(given.get("batch_size"), min(_BATCH_SIZE, pairs))
    epochs = _number(given.get("epochs"), _EPOCHS)
    passes = math.ceil(epochs * pairs / batch_size)
    most = passes if "epochs" in given else _MOST_STEPS
    steps = _number(given.get("steps"), min(passes, most))
    every = max(10, -(-steps // _VALIDATIONS))
    validation: dict[str, Any] = {
        "dataset": place,
        "split": "dev",
        "every_steps": every,
        "measures": ["nDCG@10", "R@1"],
        "measure_start": True,
        "max_queries": _MOST_QUERIES,
        "max_documents": min(max(_FEWEST_DOCUMENTS, pairs // 4), _MOST_DOCUMENTS),
    }
    if guards:
        validation["guards"] = {
            name: {"dataset": path, "max_queries": 200, "max_documents": 1000}
            for name, path in guards.items()
        }
    run: dict[str, Any] = {
        "seed": 17,
        "precision": "auto",
        "model": {"backbone": model},
        "stages": {
            "finetune": {
                "data": place,
                "split": "train",
                "steps": steps,
                "batch_size": batch_size,
                "temperature": 0.05,
                "bidirectional": True,
                "optimizer": {
                    "name": "adamw",
                    "learning_rate": 5.0e-5,
                    "warmup_steps": steps // 10,
                    "start_decay": 300.0,
                },
                "validation": validation,
                "start_shares": [0.25, 0.5],
                "min_gain_kept": 0.9,
                "checkpoint_every_steps": max(50, every),
                "log_every_steps": min(50, max(5, steps // 10)),
            }
        },
    }
    stage: dict[str, Any] = run["stages"]["finetune"]
    if negatives:
        del stage["split"]
        of_pairs = {"data": f"{place}/pairs/train.jsonl.gz", "dataset": place}
        stage = run["stages"]["finetune"] = {**stage, **of_pairs, "negatives_per_query": 1}
    # What does not go with a field that was given.
    if "epochs" in given:
        del stage["steps"]
    if given.get("optimizer.name", "adamw") != "adamw":
        del stage["optimizer"]["start_decay"]
    adapted = any(name.partition(".")[0] == "lora" for name in given)
    if adapted or given.get("start_shares") == []:
        del stage["min_gain_kept"]
    if adapted:
        del stage["start_shares"]
    _change_fields(run, changes)
    return run


def _number(value: object, default: int) -> int:
    """Returns a number that can stand; what cannot is told of when the recipe is read."""
    return value if isinstance(value, int) and value > 0 else default


def _change_fields(run: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for place, value in changes.items():
        *parts, name = place.split(".")
        inside = run
        for part in parts:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                rule = f"must be a field, but `{part}` has none"
                raise ConfigError(f"`{place}` {rule}. Received: {value!r}")
        inside[name] = value
