"""The files of a folder that a reader takes, by what their names end in."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection
from pathlib import Path

from tfde.errors import DataError
from tfde.storage.intake import Intake

MARKDOWN_SUFFIXES = (".md", ".markdown")
# A larger file is no page that somebody wrote.
MAX_FILE_BYTES = 1 << 24
TOO_LARGE = "a file must have at most"
_FRONT_MATTER = re.compile(
    r"\A---[^\S\n]*\n.*?^(?:---|\.\.\.)[^\S\n]*$\n?", re.DOTALL | re.MULTILINE
)
_LOG = logging.getLogger(__name__)


def title_of(name: str) -> str:
    """Returns what a file's name says, for a title, also where its bytes are no UTF-8."""
    stem = os.fsencode(Path(name).stem).decode("utf-8", "replace")
    return stem.replace("_", " ")


def files_within(root: Path, suffixes: Collection[str], intake: Intake) -> list[str]:
    """Returns the paths in a folder of files that end in one of `suffixes`, sorted, with slashes.

    Hidden files and folders are passed over. Left out and counted are files of other kinds, and,
    each named in the log, symbolic links to folders and to files outside.
    """
    found: list[str] = []
    inside = root.resolve()
    for folder, folders, names in os.walk(root):
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in shown if not Path(folder, name).is_symlink()]
        _leave_out(intake, "symbolic links to folders", folder, set(shown) - set(folders))
        outside = []
        for name in names:
            if name.startswith("."):
                continue
            place = Path(folder, name)
            if place.suffix.lower() not in suffixes:
                intake.leave_out("files of other kinds")
            elif place.is_symlink() and not place.resolve().is_relative_to(inside):
                outside.append(name)
            elif not place.is_file():  # a pipe would never end
                intake.leave_out("files of other kinds")
            else:
                found.append(place.relative_to(root).as_posix())
        _leave_out(intake, "symbolic links out of the folder", folder, outside)
    return sorted(found)


def read_bounded(path: Path) -> bytes:
    """Returns the bytes of a file.

    Raises:
        DataError: it is larger than `MAX_FILE_BYTES`.
    """
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise DataError(path, None, f"{TOO_LARGE} {MAX_FILE_BYTES >> 20} MiB.")
    return raw


def without_front_matter(text: str) -> str:
    """Returns a Markdown file's text without the YAML that may stand before it."""
    return _FRONT_MATTER.sub("", text)


def encoding_error(path: Path, raw: bytes, encoding: str, start: int) -> DataError:
    """Returns what to raise where the bytes of a file from `start` on are not in its encoding."""
    line = raw.count(b"\n", 0, start) + 1
    rule = f"must be {encoding} (byte {start} of the file is not)."
    return DataError(path, line, rule, raw[start : start + 8].hex(" "))


def _leave_out(intake: Intake, kind: str, folder: str, names: Collection[str]) -> None:
    for name in sorted(names):
        _LOG.warning("%s: is not followed; it is one of the %s", Path(folder, name), kind)
    intake.leave_out(kind, len(names))
