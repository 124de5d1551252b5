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
    return _once(parts[-1] if parts else path, known)


def name_and_path(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Returns what `[NAME=]PATH` calls a model, and its path.

    Args:
        text: What was given.
        known: Names that are taken.
    """
    name, path = split_name(text)
    return short_name(path, known) if name is None else _once(name, known), path


def split_name(text: str) -> tuple[str | None, str]:
    """Reads `[NAME=]PATH`; a path may hold "=" where it exists, or after a "/"."""
    name, separator, path = text.partition("=")
    if not separator or "/" in name or Path(text).exists():
        return None, text
    return name, path


def _once(name: str, known: Sequence[str]) -> str:
    free, number = name, 2
    while free in known:
        free, number = f"{name} ({number})", number + 1
    return free
