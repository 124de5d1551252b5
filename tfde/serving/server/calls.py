"""The request that a thread or task works for: how long its client waits, and whether it does."""

from __future__ import annotations

import time
from contextvars import ContextVar

from grpc import StatusCode

from tfde.serving.server.status import StatusError


class Call:
    """One request, as its port sees it.

    Args:
        timeout_s: Seconds from now that its client waits; `None` for ever.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.gone = False  # set by the port when the client has left

    def leave(self) -> None:
        """Tells that the client waits no longer."""
        self.gone = True

    def left_s(self) -> float | None:
        """Returns the seconds that are left, which may be below 0; `None` without a limit."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def check(self) -> None:
        """Refuses to begin what nobody waits for.

        Raises:
            StatusError: CANCELLED, the client has left; DEADLINE_EXCEEDED.
        """
        if self.gone:
            raise StatusError(StatusCode.CANCELLED, "the client has left")
        left = self.left_s()
        if left is not None and left <= 0:
            raise StatusError(StatusCode.DEADLINE_EXCEEDED, "the request's time is over")


_NOBODYS = Call()
_current: ContextVar[Call] = ContextVar("tfde_call", default=_NOBODYS)


def current_call() -> Call:
    """Returns the request that this thread or task works for; one that waits for ever else."""
    return _current.get()


def begin_call(call: Call) -> None:
    """Makes it the request of this thread or task, and of those that it starts."""
    _current.set(call)
