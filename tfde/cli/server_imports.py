"""What a server imports, which is the longest part of its start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Imports TensorFlow without Keras; what its block imports is here to stay.

    TensorFlow imports Keras for programs that train, and Keras what it finds of pandas,
    scikit-learn and Matplotlib: together longer than TensorFlow itself, and 190 MiB. Whoever needs
    Keras later can import it.

    Python's collector looks through nothing meanwhile, and never through what was imported: that
    takes a tenth of a second each time.
    """
    gc.disable()
    try:
        _import_tensorflow()
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import_tensorflow() -> None:
    if "tensorflow" in sys.modules or "keras" in sys.modules:
        return
    sys.modules["keras"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        import tensorflow  # noqa: F401
    finally:
        del sys.modules["keras"]
