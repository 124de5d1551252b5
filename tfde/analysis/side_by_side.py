"""Work on several things at once, each on a share of the cores, except those that must wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from tfde.errors import require

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
            for future in wait(running, _LOOK_AGAIN_S, FIRST_COMPLETED).done:
                task, cores = running.pop(future)
                shares.append(cores)
                failure = failure or future.exception()
                if future.exception() is None:
                    yield task, future.result()
    if failure is not None:
        raise failure
