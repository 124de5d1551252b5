"""A file made part by part, perhaps by several processes; a kill costs the parts in work."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, CorruptError, MismatchError, shorten
from tfde.storage.atomic import (
    atomic_file,
    directory_lock,
    make_directories,
    refuse_unwritable,
    remove_left,
)
from tfde.storage.compressed import open_writer
from tfde.storage.files import check_sha256, read_json, sha256, write_json

FORMAT = 1
_SETTINGS = "settings.json"


class PartedFile:
    """A file of lines: `OUTPUT.parts/` while it is made, `OUTPUT` and `OUTPUT.json` after.

    Args:
        output: The file, packed if its name ends in `.gz` or `.zst`.
        settings: What its content depends on, as JSON. Parts that were begun, or a file that was
            made, with other settings are refused.

    Raises:
        ConfigError: a directory stands there.
    """

    def __init__(self, output: str | Path, settings: Mapping[str, Any]) -> None:
        refuse_unwritable(output)
        self.output = Path(output)
        self.directory = self.output.with_name(f"{self.output.name}.parts")
        self._record = record_of(self.output)
        self._settings = json.loads(json.dumps({"format": FORMAT, **settings}))

    def finished(self) -> dict[str, int] | None:
        """Returns the counts of the whole file if it is done.

        Raises:
            ConfigError: the output holds something else.
            CorruptError: the output differs from what was written.
        """
        if not self.output.exists():
            return None
        if not self._record.exists():
            if not self.directory.exists():
                raise ConfigError(f"{self.output}: exists already; choose another or remove it.")
            return None  # killed between the output and its record
        record = read_json(self._record)
        odd = first_difference(record.get("settings", {}), self._settings)
        if odd:
            raise ConfigError(
                f"{self.output}: was made otherwise: {odd}; choose another or remove it."
            )
        check_sha256(self.output, record["sha256"])
        shutil.rmtree(self.directory, ignore_errors=True)  # of a kill at the very end
        counts: dict[str, int] = record["counts"]
        return counts

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Makes the directory of parts, or takes up that of a killed run, and keeps others out.

        Raises:
            MismatchError: it was begun with other settings.
            ConfigError: the output holds something else, or another process makes it now.
        """
        settings = self.directory / _SETTINGS
        if not settings.exists() and any(self.directory.glob("[!.]*")):
            raise ConfigError(f"{self.directory}: holds no parts of ours; remove it.")
        make_directories(self.directory)
        with directory_lock(self.directory, "making these parts"):
            if settings.exists():
                self._take_up(read_json(settings))
            else:
                self._record.unlink(missing_ok=True)  # of an output that was removed
                write_json(settings, self._settings)
            yield

    def part(self, number: int) -> dict[str, int] | None:
        """Returns the counts of a part that is done.

        Raises:
            CorruptError: it differs from what was written.
        """
        path = self._part(number, ".json")
        if not path.exists():
            return None
        record = read_json(path)
        if not {"sha256", "counts"} <= set(record):
            raise CorruptError(f"{path}: is no record of a part.")
        check_sha256(self._part(number, ".lines"), record["sha256"])
        counts: dict[str, int] = record["counts"]
        return counts

    def write_part(self, number: int, lines: Iterable[bytes], counts: Mapping[str, int]) -> None:
        """Writes a part; it counts as done once its record is there.

        Args:
            number: Its place in the file, from 0.
            lines: Its lines with their line ends.
            counts: What was counted, added up over the parts.
        """
        path = self._part(number, ".lines")
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            file.writelines(lines)
        write_json(self._part(number, ".json"), {"sha256": sha256(path), "counts": counts})

    def finish(self, parts: int) -> dict[str, int]:
        """Joins the parts to the output, removes them, and returns the counts of all.

        Raises:
            CorruptError: a part is missing or differs from what was written.
        """
        counts: Counter[str] = Counter()
        for number in range(parts):
            found = self.part(number)
            if found is None:
                raise CorruptError(f"{self._part(number, '.json')}: is missing.")
            counts.update(found)
        with open_writer(self.output) as file:
            for number in range(parts):
                with open(self._part(number, ".lines"), "rb") as part:
                    shutil.copyfileobj(part, file)
        record = {"settings": self._settings, "counts": counts, "sha256": sha256(self.output)}
        write_json(self._record, record)
        shutil.rmtree(self.directory)
        return dict(counts)

    def _take_up(self, begun: Mapping[str, Any]) -> None:
        odd = first_difference(begun, self._settings)
        if odd and any(self.directory.glob("part-*.json")):
            raise MismatchError(
                f"{self.directory}: was begun otherwise: {odd}; give the command with which it was"
                " begun, or remove it."
            )
        remove_left(self.directory)
        if odd:  # no part was done, so nothing is lost with what was made for other settings
            for made in self.directory.glob("[!.]*"):
                shutil.rmtree(made) if made.is_dir() else made.unlink()
            write_json(self.directory / _SETTINGS, self._settings)

    def _part(self, number: int, suffix: str) -> Path:
        return self.directory / f"part-{number:05d}{suffix}"


def record_of(output: Path) -> Path:
    """Returns where settings and counts of a finished file stand."""
    return output.with_name(f"{output.name}.json")


def check_finished(output: Path) -> None:
    """Compares a finished file with its record.

    Raises:
        CorruptError: one of them is missing, or the file differs from what was written.
    """
    record = record_of(output)
    if not record.is_file():
        raise CorruptError(f"{record}: is missing.")
    check_sha256(output, read_json(record).get("sha256", ""))


def first_difference(old: Any, new: Any, where: str = "") -> str:
    """Returns the first field that differs, as `a.b was 1, is 2`, or nothing.

    Args:
        old: JSON's values.
        new: The same; its order decides what is first.
        where: The field that both are.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            odd = first_difference(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
            if odd:
                return odd
        return ""
    return "" if old == new else f"{where} was {shorten(old)}, is {shorten(new)}"
