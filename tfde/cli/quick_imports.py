"""What a command imports, which is the longest part of its start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tfde.import_watch import ImportWatch

# Keras imports them where they are there, for arguments and wrappers that no command uses.
_UNUSED = ("pandas", "sklearn", "matplotlib")
# A command makes many objects that stay (modules, records), which Python's collector looks through
# again and again: a fifth of what imports and reading take.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def lighten_imports() -> None:
    """Lets this process import Keras without pandas, scikit-learn and Matplotlib.

    They can be imported before and after; Keras' wrappers for scikit-learn stay without it.
    Python's collector comes less often from now on.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    if "keras" not in sys.modules:
        sys.meta_path.insert(0, ImportWatch("keras", lambda _: _without(_UNUSED)))


@contextmanager
def quick_imports() -> Iterator[None]:
    """Imports TensorFlow without Keras; what its block imports is here to stay.

    TensorFlow imports Keras for programs that train, and Keras what it finds of pandas,
    scikit-learn and Matplotlib: together longer than TensorFlow itself, and 190 MiB. SciPy's sparse
    matrices are for an old Keras within TensorFlow. Whoever needs them later can import them.

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
    with _without(["keras", "scipy"]):
        import tensorflow  # noqa: F401


@contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
    """Imports in its block find no modules of these names, but those that are there already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
