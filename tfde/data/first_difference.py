"""What differs between the description of what was begun and that of what is asked for now."""

from __future__ import annotations

from typing import Any

from tfde.errors import shorten


def first_difference(old: Any, new: Any, where: str = "") -> str:
    """Returns the first field that differs, as `a.b was 1, is 2`, or nothing.

    Args:
        old: JSON's values.
        new: The same; its order decides what is first.
        where: The field that both are.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            odd = first_difference(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
            if odd:
                return odd
        return ""
    return "" if old == new else f"{where} was {shorten(old)}, is {shorten(new)}"
