"""What the demo prints on stdout: numbered steps with their seconds, bold only on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BOLD, _GREEN, _QUIET, _PLAIN = "\033[1m", "\033[1;32m", "\033[2m", "\033[0m"


class Screen:
    """Prints steps and what they found.

    Args:
        steps: How many steps there will be.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._number = 0
        self._began = time.perf_counter()
        self._coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    @property
    def seconds(self) -> float:
        """Since the screen was made."""
        return time.perf_counter() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Prints the step's number and title before, and its seconds after it."""
        self._number += 1
        start = time.perf_counter()
        print(f"\n{self.bold(f'[{self._number}/{self._steps}] {title}')}", flush=True)
        yield
        print(self.quiet(f"      {time.perf_counter() - start:.0f} s"), flush=True)

    def say(self, text: str = "") -> None:
        """Prints lines."""
        print(text, flush=True)

    def bold(self, text: str) -> str:
        """Returns a text that stands out."""
        return self._in(_BOLD, text)

    def good(self, text: str) -> str:
        """Returns a text in the colour of success."""
        return self._in(_GREEN, text)

    def quiet(self, text: str) -> str:
        """Returns a text that stands back."""
        return self._in(_QUIET, text)

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._coloured else text
