"""One batch on all cores, where each op has one thread.

Ops of a dozen tokens lose time by a second thread. A batch of many rows gains by it, and as well by
running its rows in parts, a core each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.environment import usable_cores
from tfde.protos.batching_parameters_pb2 import BatchingParameters

_LEAST_ROWS = 8  # of a core; of fewer, the hand-over shows

Arrays = Sequence[np.ndarray]


def cores_to_share(parameters: BatchingParameters, session_config: Any) -> int:
    """Returns among how many cores a batch is shared that runs alone.

    1 but where ops have one thread each, batches may have any size, and no GPU runs them.
    """
    one = session_config is not None and session_config.intra_op_parallelism_threads == 1
    if not one or parameters.allowed_batch_sizes or tf.config.list_physical_devices("GPU"):
        return 1
    return usable_cores()


class SharedBatches:
    """Runs batches of a signature, and shares their rows among cores while no other of it runs.

    Args:
        run: Inputs to outputs, with a row of each output for each row of inputs.
        cores: How many.
    """

    def __init__(self, run: Callable[[Arrays], Arrays], cores: int) -> None:
        self._run = run
        self._cores = cores
        self._threads = ThreadPoolExecutor(cores, "batch")  # which start when they are needed
        self._lock = threading.Lock()
        self._running = 0

    def __call__(self, inputs: Arrays) -> Arrays:
        """Runs a batch; inputs without rows, numbers alone, go to each part."""
        rows = next((len(array) for array in inputs if array.ndim), 0)
        with self._lock:
            shares = 1 if self._running else min(self._cores, rows // _LEAST_ROWS)
            self._running += 1
        try:
            return self._run(inputs) if shares < 2 else self._shared(inputs, rows, shares)
        finally:
            with self._lock:
                self._running -= 1

    def _shared(self, inputs: Arrays, rows: int, shares: int) -> Arrays:
        bounds = list(pairwise(rows * share // shares for share in range(shares + 1)))
        runs = [
            self._threads.submit(
                self._run, [array[start:stop] if array.ndim else array for array in inputs]
            )
            for start, stop in bounds
        ]
        wait(runs)
        found = [run.result() for run in runs]
        shapes = {tuple(array.shape[1:] for array in arrays) for arrays in found}
        rowwise = all(
            array.ndim and len(array) == stop - start
            for (start, stop), arrays in zip(bounds, found, strict=True)
            for array in arrays
        )
        if not rowwise or len(shapes) > 1:  # such as rows as long as the longest of all
            return self._run(inputs)
        return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]
