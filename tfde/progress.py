"""Signs of life of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

# Work that ends within so many seconds shows nothing.
_SILENT_S = 2.0
_SECONDS_A_LINE = 15.0
_UP = "\x1b[A"  # the cursor, from a bar below another


def progress_bar(*args: Any, **kwargs: Any) -> Any:
    """Returns tqdm's bar; where stderr is no terminal, a line with rate and time left now and then.

    Args:
        *args: As `tqdm.tqdm`.
        **kwargs: As `tqdm.tqdm`, such as `total`, `desc`, `unit`, `disable`.
    """
    kwargs["delay"] = _SILENT_S
    if not sys.stderr.isatty():
        kwargs |= {"file": _Lines(), "ncols": 100, "ascii": True, "leave": False}
        kwargs |= {"mininterval": _SECONDS_A_LINE, "maxinterval": 2 * _SECONDS_A_LINE}
    return tqdm(*args, **kwargs)


class _Lines:
    """Makes lines of what a bar writes over and over in one place."""

    def write(self, text: str) -> None:
        line = text.replace(_UP, "").strip()
        if line:
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()
