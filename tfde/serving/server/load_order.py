"""Which versions of models load first, and which wait for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tfde.serving.server.served_version import ServedVersion, State

_PENDING = (State.START, State.LOADING)


class LoadOrder:
    """Versions that have not begun to load; whoever holds the manager's lock may ask it.

    Args:
        first: Models that load before all others, once: as soon as none of them loads any more,
            there is no order.
    """

    def __init__(self, first: Collection[str]) -> None:
        self._first = frozenset(first)
        self._waiting: list[ServedVersion] = []

    def add(self, version: ServedVersion) -> None:
        """Takes a version that is to be loaded in its turn."""
        self._waiting.append(version)

    def take_due(
        self, configured: Collection[str], models: Mapping[str, Mapping[int, ServedVersion]]
    ) -> list[ServedVersion]:
        """Returns the versions whose turn it is, each once.

        Args:
            configured: Names of the models to serve.
            models: Versions by model and number.
        """
        if self._first and all(_has_come(models.get(n, {})) for n in self._first & set(configured)):
            self._first = frozenset()
        due = [v for v in self._waiting if not self._first or v.name in self._first]
        self._waiting = [version for version in self._waiting if version not in due]
        return due


def _has_come(versions: Mapping[int, ServedVersion]) -> bool:
    return bool(versions) and not any(v.state in _PENDING for v in versions.values())
