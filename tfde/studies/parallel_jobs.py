"""Several things at once: each on a share of the cores, each perhaps in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_sentinels
from typing import Any, TypeVar

from tfde.errors import TrainingError, require
from tfde.storage.atomic import remove_unfinished

Task = TypeVar("Task")
Result = TypeVar("Result")
_LOOK_AGAIN_S = 2.0  # what a task waits for may come before the other one ends


def core_shares(jobs: int) -> list[list[int]]:
    """Returns the cores of this process, divided into `jobs` shares.

    Raises:
        ConfigError: there are fewer cores than that.
    """
    cores = sorted(os.sched_getaffinity(0))
    require(1 <= jobs <= len(cores), "jobs", f"in [1, {len(cores)}] (this machine's cores)", jobs)
    return [cores[len(cores) * n // jobs : len(cores) * (n + 1) // jobs] for n in range(jobs)]


def side_by_side(
    tasks: Sequence[Task],
    work: Callable[[Task, Sequence[int]], Result],
    *,
    jobs: int,
    must_wait: Callable[[Task, Task], bool],
) -> Iterator[tuple[Task, Result]]:
    """Yields each task with its result as soon as there is one.

    What is done with a result happens before the next task begins. After a failure nothing new
    begins, and what is at work may end.

    Args:
        tasks: In the order in which they begin, but for those that have to wait.
        work: Called in a thread of its own, with a task and the cores that are its share.
        jobs: How many are at work at the same time.
        must_wait: Whether the first task cannot begin while the second one is at work.

    Raises:
        ConfigError: there are fewer cores than `jobs`.
        Exception: what `work` raised first, at the end.
    """
    shares = core_shares(jobs)
    waiting = list(tasks)
    running: dict[Future[Result], tuple[Task, list[int]]] = {}
    failure: BaseException | None = None
    with ThreadPoolExecutor(jobs) as pool:
        while running or (waiting and failure is None):
            for task in list(waiting) if failure is None else []:
                if shares and not any(must_wait(task, other) for other, _ in running.values()):
                    waiting.remove(task)
                    cores = shares.pop(0)
                    running[pool.submit(work, task, cores)] = (task, cores)
            for future in wait_for_futures(running, _LOOK_AGAIN_S, FIRST_COMPLETED).done:
                task, cores = running.pop(future)
                shares.append(cores)
                failure = failure or future.exception()
                if future.exception() is None:
                    yield task, future.result()
    if failure is not None:
        raise failure


def call_in_child(
    function: Callable[..., Any], *args: Any, cores: Collection[int] | None = None
) -> Any:
    """Returns what `function(*args)` returns in a fresh process, which dies with this one.

    Args:
        function: Of a module, so that the other process finds it.
        args: What it takes; like its result, it must be possible to pickle it.
        cores: Those that it may use; `None`: those of this process.

    Raises:
        TrainingError: the function raised something, or its process was killed.
    """
    context = multiprocessing.get_context("spawn")  # a fork of TensorFlow hangs
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(cores,)) as pool:
        try:
            result, error = pool.submit(_call, function, args).result()
        except BrokenProcessPool:
            raise TrainingError(
                "its process was killed; perhaps the machine has too little memory."
            ) from None
    if error is not None:
        raise TrainingError(error)
    return result


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str | None]:
    try:
        return function(*args), None
    except Exception as error:  # not all of them can be pickled
        if os.environ.get("TFDE_TRACEBACK") == "1":
            traceback.print_exc()
        message = " ".join(str(error).split()) or "without a message"
        return None, f"{type(error).__name__}: {message}"


def _begin(cores: Collection[int] | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)  # before TensorFlow counts the cores for its threads
    _die_with_parent()


def _die_with_parent() -> None:
    """Ends this process when its parent is gone: else it would train on beside its successor."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait_for_sentinels([parent.sentinel])
        remove_unfinished()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
