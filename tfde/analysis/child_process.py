"""A function in a process of its own: memory is given back, whatever it leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

from tfde.data.atomic import remove_unfinished
from tfde.errors import TrainingError


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
        wait([parent.sentinel])
        remove_unfinished()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
