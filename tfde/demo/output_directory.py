"""The demo's directory, which is nobody else's; looked at before TensorFlow is imported."""

from __future__ import annotations

import shutil
from pathlib import Path

from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.errors import ConfigError

MARKER = "demo.json"
TABLE = "table.csv"
# A recipe is of earlier versions.
_PRODUCTS = {MARKER, TABLE, "data", "run", "embeddings", "bundle", "server.log", "recipe.yaml"}


def check_demo(output: Path, *, backbone: str | None, from_scratch: bool) -> None:
    """Refuses what a demo cannot be made with.

    Raises:
        ConfigError: `output` holds something else, `backbone` is not there, or it stands beside
            `from_scratch`.
    """
    if backbone is not None:
        if from_scratch:
            raise ConfigError(
                f"`backbone` must be absent beside `from_scratch`. Received: {backbone}"
            )
        check_checkpoint(backbone)
    found = {path.name for path in output.iterdir()} if output.exists() else set()
    foreign = {name for name in found - _PRODUCTS if not name.startswith(".")}
    if found and (MARKER not in found or foreign):
        raise ConfigError(f"{output} is not empty and holds no demo; choose another --output.")


def take_over(output: Path) -> None:
    """Empties the directory of an earlier demo, or makes a new one."""
    if output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True)
    (output / MARKER).write_text('{"made_by": "tfde demo"}\n', "utf-8")
