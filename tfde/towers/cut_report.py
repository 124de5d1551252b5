"""A line about the texts that training reads: how many are too long for the model."""

from __future__ import annotations

import logging
from typing import Any

import keras

from tfde.text.cut_texts import cut_line

_LOG = logging.getLogger(__name__)
# Early enough for whoever would train for a day, late enough to say something.
_FIRST_AT = 100


class CutReport(keras.callbacks.Callback):
    """Says in the log how many texts were cut, after the first 100 steps and at the end.

    For models with `trained_texts()`.
    """

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Says it early."""
        if batch + 1 == _FIRST_AT:
            self._say(f"in the first {_FIRST_AT} steps")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Says it of all."""
        self._say("in training")

    def _say(self, when: str) -> None:
        line = cut_line(self.model.trained_texts())
        if line:
            _LOG.info("%s: %s", when, line)
