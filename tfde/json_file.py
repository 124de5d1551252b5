"""Why a text is no JSON, in a few words."""

from __future__ import annotations

import json


def json_fault(error: ValueError | RecursionError) -> str:
    """Returns in a few words why `json.loads` refused a text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deep" if isinstance(error, RecursionError) else "a number is too long"
