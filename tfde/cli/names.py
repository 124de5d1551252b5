"""What a model is called in tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def short_name(path: str, known: Sequence[str]) -> str:
    """Returns the last part of a path that says something, and no name twice.

    Args:
        path: A model directory, a run file, or a name.
        known: Names that are taken.
    """
    parts = [part for part in Path(path).parts if part not in ("model", "best_model")]
    name = parts[-1] if parts else path
    return name if name not in known else f"{name} ({len(known) + 1})"
