"""A file in a second place without a second copy of its content, where the disk can do that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes `target` a hard link to `source`, or a copy where that cannot be.

    Either way `target` stays whole when `source` is removed or replaced. (All writers of tfde
    replace files; a program that writes into a file changes its links too.)
    """
    # A link to a symbolic link would hang on what that one points to.
    source = Path(source).resolve()
    try:
        os.link(source, target)
    except OSError:  # another file system, one without links, or a file of somebody else
        shutil.copyfile(source, target)
