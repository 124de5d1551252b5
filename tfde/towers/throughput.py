"""Pairs a second in the progress bar."""

from __future__ import annotations

import statistics
import time
from collections import deque

import keras


class Throughput(keras.callbacks.Callback):
    """Adds `pairs_per_s` to the logs of each step and epoch.

    It is the median over the last 20 steps, so that a validation or a checkpoint between two
    steps does not count as training.

    Args:
        batch_size: Pairs a step.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._last: float | None = None
        self._seconds: deque[float] = deque(maxlen=20)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the time and adds the rate."""
        now = time.perf_counter()
        if self._last is not None:
            self._seconds.append(now - self._last)
        self._last = now
        self.on_epoch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the rate of the last steps."""
        if logs is not None and self._seconds:
            logs["pairs_per_s"] = self.batch_size / statistics.median(self._seconds)
