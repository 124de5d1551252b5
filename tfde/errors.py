"""What a caller may catch; every message is one line: the place, the rule, the value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class TfdeError(Exception):
    """Base class of the errors that tfde raises on purpose."""


class DataError(TfdeError, ValueError):
    """A record of a data file breaks a rule.

    Args:
        path: The file.
        line: 1-based line number, or `None` where the fault is the whole file's.
        rule: What must hold.
        value: What was received; shortened to 80 characters.
    """

    def __init__(self, path: str | Path, line: int | None, rule: str, value: object = None) -> None:
        where = f"{path}:{line}" if line is not None else f"{path}"
        self.path, self.line, self.rule, self.value = path, line, rule, value
        received = "" if value is None else f" Received: {shorten(value)}"
        super().__init__(f"{where}: {rule}{received}")


class ConfigError(TfdeError, ValueError):
    """A recipe, an option or a combination of them is impossible."""


class OtherRunError(ConfigError):
    """A directory holds another run than the one that is to go on there."""


class MismatchError(TfdeError):
    """Two parts that do not belong together: other fingerprints, other dimensions."""


class MissingExtraError(TfdeError, ImportError):
    """What is asked for needs packages that an extra of tfde brings, and they are not installed."""


class TrainingError(TfdeError):
    """Training cannot go on: the loss is not a number."""


class LostProcessError(TrainingError):
    """Another process that trains the same model is gone, or no longer answers."""


class PipelineError(TfdeError):
    """A step of a distributed job failed, or one of its workers is gone."""


class CorruptError(TfdeError):
    """A stored file differs from what was written: checksum, size or format."""


class ServerError(TfdeError):
    """A model server does not answer, or answers with an error."""


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Puts the name of an argument before the message of a `ConfigError` that comes from inside."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"`{argument}`: {error}") from error


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says; its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def shorten(value: object, limit: int = 80) -> str:
    """Returns `repr(value)` in one line of `limit` characters; of much the beginning is read."""
    text = " ".join(map(str.strip, repr(_beginning(value, limit, [limit])).splitlines()))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _beginning(value: Any, limit: int, left: list[int]) -> Any:
    """Returns a value with its first elements, as many as are left within it and around it."""
    kind = type(value)
    if kind in (str, bytes):
        return value[:limit]
    if kind not in (list, tuple, dict):
        return value
    kept = []
    for element in value.items() if kind is dict else value:
        if left[0] <= 0:
            break
        left[0] -= 1
        parts = element if kind is dict else (element,)
        parts = tuple(_beginning(part, limit, left) for part in parts)
        kept.append(parts if kind is dict else parts[0])
    return kind(kept)


def utf8_fault(text: str) -> str | None:
    """Returns which part of a text UTF-8 cannot write, if there is one: half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{text[error.start]!r} at character {error.start}"
    return None


def require(holds: bool, name: str, rule: str, value: object) -> None:
    """Refuses a value.

    Args:
        holds: Whether it obeys the rule.
        name: The field or argument.
        rule: What it must be.
        value: What was received.

    Raises:
        ConfigError: it does not.
    """
    if not holds:
        raise ConfigError(f"`{name}` must be {rule}. Received: {shorten(value)}")
