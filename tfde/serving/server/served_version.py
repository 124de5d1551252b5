"""One version of a model, and the states it goes through."""

from __future__ import annotations

from typing import NamedTuple

from tensorflow_serving.apis import get_model_status_pb2

from tfde.serving.server.inference import Servable
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError, not_found

State = get_model_status_pb2.ModelVersionStatus


class VersionState(NamedTuple):
    """What a client may know of a version; `error` is why it is not there."""

    version: int
    state: int
    error: StatusError | None


class ServedVersion:
    """A version on its way from START to END; whoever holds the manager's lock may change it.

    Args:
        name: Of the model.
        number: Of the version.
        path: Directory of the SavedModel.
    """

    def __init__(self, name: str, number: int, path: str) -> None:
        self.name = name
        self.number = number
        self.path = path
        self.state: int = State.START
        self.error: StatusError | None = None
        self.runner: SignatureRunner | None = None
        self.users = 0
        self.aspired = True

    def servable(self) -> Servable:
        """Returns what answers requests."""
        if self.runner is None:
            raise not_found(f"Servable not found for request: Specific({self.name})")
        return Servable(self.name, self.number, self.runner)

    def public_state(self) -> VersionState:
        """Returns what a client may know."""
        return VersionState(self.number, self.state, self.error)

    def reason(self) -> str:
        """Returns why it is not there, as a reload's error says it."""
        error = self.error
        due = f" due to error: {error.code.name}: {error.message}" if error else ""
        return f"{{name: {self.name} version: {self.number}}}{due}"

    def __str__(self) -> str:
        return f"{self.name} version {self.number}"
