"""Labels of figures."""

from __future__ import annotations


def plain_text(text: str) -> str:
    """Returns a label as matplotlib shows it: unasked, `$` begins a formula, `_` hides a label."""
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")
