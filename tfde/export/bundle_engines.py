"""The towers of a bundle for other engines, and which of them runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfde.config.engines import EngineChoice, Use
from tfde.engines.tower_engine import engine_version, is_installed, require_engine, tower_file
from tfde.errors import require

if TYPE_CHECKING:
    from tfde.towers.saved_models import Encoder


def engine_of(manifest: Mapping[str, Any], choice: EngineChoice, *, use: Use) -> str:
    """Returns the engine that a choice means for a bundle.

    Args:
        manifest: Of the bundle.
        choice: An engine; `auto`: the one that was fastest when the bundle was exported, of those
            that are installed here.
        use: Whose times count.

    Raises:
        ConfigError: the bundle has no towers for the engine, or there is none of this name.
        MissingExtraError: it is not installed.
    """
    require_engine(choice)
    found = manifest.get("engines", {})  # which bundles of before had not
    if choice != "auto":
        held = ", ".join(["auto", "tensorflow", *found])
        rule = f"one of {held}: what the bundle has towers for (`tfde export --format`)"
        require(choice in ("auto", "tensorflow", *found), "engine", rule, choice)
        return choice
    times = {}
    for name, about in found.items():
        tower = about["models"][f"{use}_encoder"]
        if is_installed(name):
            times[name] = tower[f"{use}_ms"]
            times.setdefault("tensorflow", tower[f"tensorflow_{use}_ms"])
    return min(times, key=lambda name: times[name], default="tensorflow")


def write_engines(
    engine: str,
    models: Path,
    version: str,
    *,
    encoders: Mapping[str, Encoder],
    retrievers: Iterable[str],
) -> dict[str, Any]:
    """Writes the towers for an engine beside the SavedModels.

    Args:
        engine: Which one.
        models: The bundle's directory of models.
        version: Of all models.
        encoders: The two encoders by their models' names.
        retrievers: Names of models that have the query tower in them.

    Returns:
        What the manifest says: the engine's version, and how each encoder does.
    """
    about = {
        name: encoder.write_engine(engine, models / name / version)
        for name, encoder in encoders.items()
    }
    written = tower_file(engine, models / "query_encoder" / version).parent
    for name in retrievers:
        shutil.copytree(written, models / name / version / written.name)
    return {"version": engine_version(engine), "models": about}
