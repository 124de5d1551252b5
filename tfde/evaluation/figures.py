"""The packages that pictures need, which not every installation has."""

from __future__ import annotations

import importlib


def require_figures(*packages: str) -> None:
    """Imports what pictures need, before any work is done for them.

    Args:
        packages: Beside matplotlib, such as `sklearn`.

    Raises:
        ImportError: one is not installed; says what installs it.
    """
    for package in ("matplotlib", *packages):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(
                f"figures need {package}: pip install 'tfde[figures]'. Received: no such package"
            ) from error


def plain_text(text: str) -> str:
    """Returns a label as matplotlib shows it: unasked, `$` begins a formula, `_` hides a label."""
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")
