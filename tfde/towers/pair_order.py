"""In which order a `fit` takes the pairs that it shuffles."""

from __future__ import annotations

from typing import Any


class Order:
    """One order for all epochs of a `fit`, also of one that was killed and goes on.

    Args:
        seed: Of the order, if the `fit` does not go on with that of an earlier one.

    Attributes:
        seed: Of the order.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._passes = 0
        self._batches: Any = None

    def of(self, batches: Any) -> Any:
        """Returns batches of pairs in memory, which from now on have this order."""
        self._batches = batches
        batches.reseed(self.seed)
        return batches

    def go_on(self, seed: int) -> None:
        """Takes the order of the `fit` that is gone on with, before any batch is made."""
        self.seed = seed
        if self._batches is not None:
            self._batches.reseed(seed)

    def begin(self, number: int) -> None:
        """Says which pass over the data is the next one."""
        self._passes = number

    def next_pass(self) -> int:
        """Returns the number of the next pass over the data; another one follows."""
        self._passes += 1
        return self._passes - 1
