"""A stream in lists of a fixed length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` items, the last of what is left; Python 3.12's own are tuples."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch
