"""A map over processes that may be lost: an item that takes too long or too much costs itself.

Parsers of markup in C cannot be interrupted, and some texts keep them busy for years: the time of
nested or unclosed markup grows with its square, or doubles with each level.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_PAGE_SECONDS = 30.0
_MEMORY_BYTES = 1 << 32


class Lost(NamedTuple):
    """What stands for the result of an item whose process ended: why it did."""

    reason: str


def guarded_map(
    function: Callable[[T], R], chunks: Iterable[list[T]], *, workers: int, seconds: float
) -> Iterator[list[tuple[T, R | Lost]]]:
    """Yields each item of a chunk with its result, in the order of the chunks.

    Args:
        function: At module level, or a `functools.partial` of such; it raises nothing but
            MemoryError and ImportError, which goes on.
        chunks: Read only a little ahead of what is yielded.
        workers: Processes.
        seconds: Of processor time that an item may take.
    """
    idle: deque[_Worker[T, R]] = deque(_Worker(function, seconds) for _ in range(workers))
    pending: deque[Future[list[tuple[T, R | Lost]]]] = deque()

    def ask_all(chunk: list[T]) -> list[tuple[T, R | Lost]]:
        worker = idle.pop()  # as many threads as workers
        try:
            return [(item, worker.ask(item)) for item in chunk]
        finally:
            idle.append(worker)

    with ThreadPoolExecutor(workers) as pool:
        try:
            for chunk in chunks:
                pending.append(pool.submit(ask_all, chunk))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            pool.shutdown()
            for worker in idle:
                worker.close()


class _Worker(Generic[T, R]):
    """A process that works on one item after the other, begun anew where it was lost."""

    def __init__(self, function: Callable[[T], R], seconds: float) -> None:
        self._settings = function, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, item: T) -> R | Lost:
        process = self._process = self._process or self._begin()
        try:
            _send(process.stdin, item)
            answer: R | Lost | ImportError = _receive(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._process = None
            return Lost(self._end(process))
        if isinstance(answer, ImportError):
            raise answer
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def _begin(self) -> subprocess.Popen[bytes]:
        # Not multiprocessing, which would run the script of whoever reads pages once more.
        command = [sys.executable, "-c", f"from {__name__} import work; work()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        _send(process.stdin, self._settings)
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
    function, seconds = _receive(asked)
    while True:
        try:
            item = _receive(asked)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = function(item)
        except ImportError as error:  # a package is missing; for whoever asked
            answer = error
        except MemoryError:
            answer = Lost(f"within {_MEMORY_BYTES >> 30} GiB of memory")
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answers, answer)


def _send(file: IO[bytes] | None, value: object) -> None:
    if file is not None:
        pickle.dump(value, file)
        file.flush()


def _receive(file: IO[bytes] | None) -> Any:
    if file is None:
        raise EOFError
    return pickle.load(file)  # noqa: S301  # of a process of our own
