"""A map over processes that may be lost: an item that takes too long or too much costs itself.

Parsers of markup in C cannot be interrupted, and some texts keep them busy for years: the time of
nested or unclosed markup grows with its square, or doubles with each level.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")
T = TypeVar("T")
MAX_PAGE_SECONDS = 30.0
_MEMORY_BYTES = 1 << 32
_ANSWER_BYTES = 1 << 28


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


class Lost(NamedTuple):
    """What stands for the result of an item whose process ended: why it did."""

    reason: str


def guarded_map(
    function: Callable[[T], Any], chunks: Iterable[list[T]], *, workers: int, seconds: float
) -> Iterator[list[tuple[T, Any | Lost]]]:
    """Yields each item of a chunk with its result, in the order of the chunks.

    Args:
        function: At module level, or a `functools.partial` of such. Its results come as JSON, so
            that a parser which was taken over can say nothing else: tuples come as lists. It
            raises nothing but MemoryError and ImportError, which goes on.
        chunks: Read only a little ahead of what is yielded.
        workers: Processes.
        seconds: Of processor time that an item may take.
    """
    idle: deque[_Worker[T]] = deque(_Worker(function, seconds) for _ in range(workers))

    def ask_all(chunk: list[T]) -> list[tuple[T, Any | Lost]]:
        worker = idle.pop()  # as many threads as workers
        try:
            return [(item, worker.ask(item)) for item in chunk]
        finally:
            idle.append(worker)

    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from in_order(pool, ask_all, chunks, ahead=2 * workers)
        finally:
            pool.shutdown()
            for worker in idle:
                worker.close()


class _Worker(Generic[T]):
    """A process that works on one item after the other, begun anew where it was lost."""

    def __init__(self, function: Callable[[T], Any], seconds: float) -> None:
        self._settings = function, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, item: T) -> Any | Lost:
        process = self._process = self._process or self._begin()
        line = b""
        try:
            _send(process, item)
            line = process.stdout.readline(_ANSWER_BYTES)  # type: ignore[union-attr]
            kind, value = json.loads(line)
        except (OSError, ValueError, TypeError, RecursionError):
            if line:  # else it has ended
                process.kill()
            self._process = None
            return Lost(self._end(process))
        if kind == "missing":
            raise ImportError(value)
        return Lost(value) if kind == "lost" else value

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def _begin(self) -> subprocess.Popen[bytes]:
        # Not multiprocessing, which would run the script of whoever reads pages once more.
        command = [sys.executable, "-c", f"from {__name__} import work; work()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        _send(process, self._settings)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        process.communicate()
        if process.returncode == -signal.SIGPROF:
            return f"within {self._settings[1]:g} seconds of processor time"
        return f"by a process of its own, which ended with {process.returncode}"


def work() -> None:
    """Is what a process of `guarded_map` does."""
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a parser prints is no answer
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is in
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks has the say
    function, seconds = pickle.load(asked)  # noqa: S301  # of the process that began this one
    while True:
        try:
            item = pickle.load(asked)  # noqa: S301
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = json.dumps(("answer", function(item)))
        except ImportError as error:  # a package is missing; for whoever asked
            answer = json.dumps(("missing", str(error)))
        except MemoryError:
            answer = json.dumps(("lost", f"within {_MEMORY_BYTES >> 30} GiB of memory"))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(answer.encode() + b"\n")
        answers.flush()


def _send(process: subprocess.Popen[bytes], value: object) -> None:
    pickle.dump(value, process.stdin)  # type: ignore[arg-type]
    process.stdin.flush()  # type: ignore[union-attr]
