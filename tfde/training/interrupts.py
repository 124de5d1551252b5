"""SIGINT and SIGTERM while a model trains."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

from tfde.storage.atomic import end_by_signal
from tfde.training.callbacks import AFTER_LAST_STEP

logger = logging.getLogger("tfde")
# Whoever handles one of them otherwise keeps his own way.
_OURS = {
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL, end_by_signal),
}


@contextlib.contextmanager
def interrupts(*, alone: bool) -> Iterator[threading.Event]:
    """Gives an event that the first SIGINT or SIGTERM sets, so that the step at work can be saved.

    After a SIGTERM the process ends by it, however the block ends. A second signal does what it
    does without this block. In other threads, and where the program handles a signal by itself,
    nothing is changed.

    Args:
        alone: Whether this is the only process of a run: each of several would end at another step.

    Raises:
        KeyboardInterrupt: SIGINT set the event, and the block came to its end all the same.
    """
    stop = threading.Event()
    received: list[int] = []
    before: dict[int, Any] = {}
    if alone and threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _OURS}
        before = {n: handler for n, handler in handlers.items() if handler in _OURS[n]}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: Any) -> None:
        if received:
            restore()
            signal.raise_signal(number)
            return
        received.append(number)
        stop.set()
        logger.warning("interrupted: what is at work is finished and saved; once more ends at once")

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
        if received:
            raise KeyboardInterrupt(AFTER_LAST_STEP)
    except KeyboardInterrupt as error:
        if received == [signal.SIGTERM]:
            logger.warning("ended by SIGTERM %s", error)
        raise
    finally:
        restore()
        if received == [signal.SIGTERM]:
            signal.raise_signal(signal.SIGTERM)
