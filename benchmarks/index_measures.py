"""An engine as it is measured: recall, time, and the least value of a parameter for a recall."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np


class Way(NamedTuple):
    """Values of the search parameters, and the recall they reach."""

    setting: dict[str, int]
    recall: float


class Engine(Protocol):
    """An index of one library; building and loading fill it."""

    def build(self, vectors: np.ndarray) -> str:
        """Builds with all cores and says how."""

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...

    def id_bytes(self) -> int:
        """Returns the memory of document ids, for an index that has some beside positions."""

    def ways(self, queries: np.ndarray, wanted: np.ndarray, target: float, k: int) -> list[Way]:
        """Returns the least settings that reach a recall; what misses it is among them, too."""

    def configure(self, setting: dict[str, int]) -> None: ...

    def use_threads(self, count: int) -> None:
        """Lets a call of the calling thread use so many, where the library has a say in it."""

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Returns positions `(Q, K)`."""


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the share of the wanted positions `(Q, K)` that is among those found."""
    return float((wanted[:, :, None] == found[:, None, :]).any(axis=2).mean())


def least(reached: Callable[[int], float], target: float, bounds: Sequence[int]) -> int | None:
    """Returns the least value whose recall is the target or more, `None` if the most misses it.

    Args:
        reached: Recall of a value; taken to grow with it.
        target: The recall.
        bounds: The least value and the most.
    """
    low, high, most = bounds[0] - 1, *bounds
    while reached(high) < target:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:  # the target is missed at `low` and met at `high`
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= target else (middle, high)
    return high


def milliseconds(
    engine: Engine, queries: np.ndarray, k: int, *, batch: int, threads: int, least_s: float
) -> float:
    """Returns the milliseconds of a query, over whole passes that take a time at least.

    Args:
        engine: Loaded and configured.
        queries: `(Q, D)`.
        k: How many to find.
        batch: Queries a call. Single queries are asked by as many threads of Python; batches by
            one, and the library may use so many.
        threads: How many.
        least_s: The time.
    """
    askers = threads if batch == 1 else 1
    calls = [queries[start : start + batch] for start in range(0, len(queries), batch)]

    def ask(part: list[np.ndarray]) -> None:
        engine.use_threads(threads // askers)
        for call in part:
            engine.search(call, k)

    parts = [calls[number::askers] for number in range(askers)]
    passes = 0
    with ThreadPoolExecutor(askers) as pool:
        start = time.perf_counter()
        while not passes or time.perf_counter() - start < least_s:
            list(pool.map(ask, parts))
            passes += 1
        seconds = time.perf_counter() - start
    return 1e3 * seconds / (passes * len(queries))


def releases_gil(engine: Engine, queries: np.ndarray, k: int) -> bool:
    """Returns whether another thread of Python runs in the middle of one long call."""
    engine.use_threads(1)
    # On a busy machine the other thread may come late; one that is locked out never comes.
    return any(_other_thread_ran(engine, np.tile(queries, (10, 1)), k) for _ in range(5))


def _other_thread_ran(engine: Engine, queries: np.ndarray, k: int) -> bool:
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    engine.search(queries, k)
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    return any(0.25 < (tick - start) / seconds < 0.75 for tick in ticks)
