"""What a user's own generator raised: TensorFlow makes a traceback in a message of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_MARK = "failure of an input, number"
_numbers = itertools.count()
_failures: dict[int, Exception] = {}


@contextmanager
def telling() -> Iterator[None]:
    """Keeps what is raised within, in a function that TensorFlow calls, for `told`."""
    try:
        yield
    except Exception as error:
        number = next(_numbers)
        _failures[number] = error
        raise RuntimeError(f"{_MARK} {number}") from error


@contextmanager
def told() -> Iterator[None]:
    """Raises what was raised within `telling`, where TensorFlow's error is about it."""
    try:
        yield
    except tf.errors.OpError as error:
        found = re.search(rf"{_MARK} (\d+)", error.message)
        failure = _failures.pop(int(found[1]), None) if found else None
        if failure is None:
            raise
        raise failure from None
