"""Dual-encoder text retrieval on Keras and TensorFlow.

Names are imported on first use, so that `import tfde` costs nothing; `__init__.pyi` lists them.
"""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path
from typing import Any

from tfde.keras_classes import make_known
from tfde.version import __version__

_WHERE = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

# C++ says on stderr what it has not found; its errors reach us as exceptions. Who wants to read it
# sets the variable.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
make_known()

__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tfde' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
