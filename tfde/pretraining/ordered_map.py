"""A map over worker processes that keeps the order and holds only a few items at a time."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ordered_map(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in the order of the items.

    Args:
        function: At module level, or a `functools.partial` of such.
        items: Read only a little ahead of what is yielded.
        workers: Processes; 1 works in this one.
    """
    if workers == 1:
        yield from map(function, items)
        return
    # Not fork: this process may hold TensorFlow's threads, and a fork would copy their locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from in_order(pool, function, items, ahead=2 * workers)


def in_order(
    pool: Executor, function: Callable[[T], R], items: Iterable[T], *, ahead: int
) -> Iterator[R]:
    """Yields what a pool makes of each item, in the order of the items.

    Args:
        pool: Where the work is done.
        function: The work.
        items: Read only `ahead` of what is yielded.
        ahead: Items that are under way or done.
    """
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
