"""SIGINT while a model trains."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def interrupts(*, alone: bool) -> Iterator[threading.Event]:
    """Gives an event that the first SIGINT sets, so that the step at work can be saved.

    The second one ends the program at once, as the first does outside of this block, in other
    threads, and where the program handles it otherwise.

    Args:
        alone: Whether this is the only process of a run: each of several would end at another step.

    Raises:
        KeyboardInterrupt: the event was set, and the block came to its end all the same.
    """
    stop = threading.Event()
    before: Any = None
    if alone and threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()
        _LOG.warning("interrupted: what is at work is finished and saved; once more ends at once")

    if before is not signal.default_int_handler:
        yield stop
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
    if stop.is_set():
        raise KeyboardInterrupt("after the last step, which is saved: the same command goes on")
