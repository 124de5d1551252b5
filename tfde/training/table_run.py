"""From a table of questions and answers to a data set and a recipe, for `tfde train --table`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import columns as tables
from tfde.data.formats.csv_rows import table_files
from tfde.data.formats.records import Source
from tfde.data.split import split_by_ratio
from tfde.errors import ConfigError
from tfde.storage.atomic import atomic_file, make_directories, temporary_directory
from tfde.storage.files import sha256
from tfde.storage.intake import Intake
from tfde.training.run_record import TABLE_DATA, TABLE_RECIPE

_RATIO, _DEV_SHARE = (90, 10), 0.1
_BATCH_SIZE = 32
_EPOCHS = 3
_MOST_STEPS = 2000  # an hour of a few cores, for a model of MiniLM's size and short texts
_VALIDATIONS = 3
_HEADER = """\
# Written by `tfde train --table`. Change it, and train by it: `tfde train --run`, another --output.
# table: {table}
# sha256: {checksum}
"""


def prepare_table(
    table: str | Path,
    output: str | Path,
    *,
    model: str,
    guards: Mapping[str, str],
    columns: Sequence[str] | None = None,
    intake: Intake | None = None,
) -> Path:
    """Writes a table as a data set, split 81/9/10, and a recipe for it; or finds both there.

    Args:
        table: A table as `tfde convert --format sentence-transformers` takes it, or a folder.
        output: Directory of the run: gets `data/` and `recipe.yaml`.
        model: The start, as `model.backbone` of a recipe.
        guards: Name -> dataset directory away from home, scored on its test split.
        columns: As `tfde convert --columns`.
        intake: What becomes of bad rows; `None` stops at the first.

    Returns:
        The recipe. It is left as it is where it is of this table.

    Raises:
        ConfigError: no such table; `output` is of another table; too few rows to split.
        DataError: as `tfde.data.formats.columns.read`.
    """
    table, output, intake = Path(table), Path(output), intake or Intake()
    if not table.exists():
        raise ConfigError(f"{table}: `table` must be a file or a folder that exists.")
    files = [path for path, _ in table_files(table)] if table.is_dir() else [table]
    checksum = " ".join(sha256(file) for file in files)
    recipe, data = output / TABLE_RECIPE, output / TABLE_DATA
    if recipe.exists():
        if f"# sha256: {checksum}\n" not in recipe.read_text("utf-8"):
            raise ConfigError(
                f"{recipe}: was written for another table; choose another output. Received: {table}"
            )
        return recipe
    make_directories(output)
    with temporary_directory(output / TABLE_DATA) as folder:
        records = tables.read(
            [Source("rows", file, "train") for file in files], intake, columns=columns
        )
        write_dataset(folder / "all", records, splits=["train"], intake=intake)
        # Of a run that was killed between the two: nothing but this writes there.
        split_by_ratio(
            folder / "all", data, ratio=_RATIO, dev_share=_DEV_SHARE, overwrite=data.exists()
        )
    text = _HEADER.format(table=table, checksum=checksum)
    text += yaml.safe_dump(_recipe(data, model, guards), sort_keys=False, allow_unicode=True)
    with atomic_file(recipe) as temporary:
        temporary.write_text(text, "utf-8")
    return recipe


def _recipe(data: Path, model: str, guards: Mapping[str, str]) -> dict[str, Any]:
    qrels = DatasetDirectory(data).qrels("train")
    pairs = sum(grade > 0 for judged in qrels.values() for grade in judged.values())
    steps = min(math.ceil(_EPOCHS * pairs / _BATCH_SIZE), _MOST_STEPS)
    every = max(10, -(-steps // _VALIDATIONS))
    validation: dict[str, Any] = {
        "dataset": str(data),
        "split": "dev",
        "every_steps": every,
        "measures": ["nDCG@10", "R@1"],
        "measure_start": True,
    }
    if guards:
        validation["guards"] = {
            name: {"dataset": path, "max_queries": 200, "max_documents": 2000}
            for name, path in guards.items()
        }
    return {
        "seed": 17,
        "precision": "auto",
        "model": {"backbone": model},
        "stages": {
            "finetune": {
                "data": str(data),
                "split": "train",
                "steps": steps,
                "batch_size": min(_BATCH_SIZE, pairs),
                "temperature": 0.05,
                "bidirectional": True,
                "optimizer": {
                    "name": "adamw",
                    "learning_rate": 2.0e-5,
                    "warmup_steps": max(1, steps // 10),
                },
                "validation": validation,
                "checkpoint_every_steps": max(50, every),
            }
        },
    }
