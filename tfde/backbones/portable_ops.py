"""Graphs for other engines than TensorFlow: each function as everybody writes it.

TensorFlow's graph rewriter and those of OpenVINO and ONNX Runtime put one kernel in the place of
several ops, but know other forms of the same function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WRITES: ContextVar[bool] = ContextVar("portable_ops", default=False)


@contextmanager
def portable_ops() -> Iterator[None]:
    """Within its block what is traced for inference is written for other engines."""
    token = _WRITES.set(True)
    try:
        yield
    finally:
        _WRITES.reset(token)


def writes_portable_ops() -> bool:
    """Whether a graph for another engine is traced."""
    return _WRITES.get()
