"""Connections of an HTTP port: so many and no more, and none that its client leaves waiting."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfde.serving.server.limits import Limits

# Each chunk of a body costs the event loop as much as a small request, however small it is.
_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 64

_log = logging.getLogger(__name__)


class _Reader(h11.Connection):
    """h11's reader; refuses bodies of very many chunks with very little in each."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self.refusal = ""
        self._chunks = self._bytes = 0

    def next_event(self) -> Any:
        """Returns what comes next.

        Raises:
            RemoteProtocolError: it is not HTTP, or `refusal` says why it is not taken.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            least = (self._chunks - 1) * _LEAST_CHUNK_BYTES  # the last may not be whole yet
            if self._chunks > _FREE_CHUNKS and self._bytes < least:
                self.refusal = (
                    f"chunks of a body must have at least {_LEAST_CHUNK_BYTES} bytes on average."
                    f" Received: {self._chunks} chunks of {self._bytes} bytes"
                )
                raise h11.RemoteProtocolError(self.refusal)
        return event


class BoundedConnection(H11Protocol):
    """uvicorn's connection with the bounds that uvicorn lacks.

    While as many are open as may be, a new one takes the place of the one that has waited longest
    for its client: for a request's head or body, or for an answer to be taken. Where none does,
    the new one is closed. So idle clients keep nobody out.

    Args:
        limits: How many connections, and how long a head may take and an answer may lie.
        options: uvicorn's own.
    """

    def __init__(self, *, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.conn = self._reader = _Reader()
        self._limits = limits
        self._since = self.loop.time()
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Makes room, and begins to wait for a head."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._make_room()
        self._watch = self.loop.call_later(self._limits.head_timeout_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the waiting."""
        super().connection_lost(exc)
        if self._watch is not None:
            self._watch.cancel()

    def data_received(self, data: bytes) -> None:
        """Takes bytes; the first of a head begin its time."""
        if not self._is_asked() and self.timeout_keep_alive_task is not None:
            self._since = self.loop.time()
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Says why a request is not taken."""
        super().send_400_response(self._reader.refusal or msg)

    def on_response_complete(self) -> None:
        """Begins to wait for the next head."""
        self._since = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Ends a connection without a further request, not one whose answer is not taken yet."""
        if self.transport.get_write_buffer_size():
            self.timeout_keep_alive_task = None
        else:
            super().timeout_keep_alive_handler()

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _waits(self) -> bool:
        """Whether it is the client's turn."""
        return not self._is_asked() or self.cycle.more_body

    def _look(self) -> None:
        """Ends a connection whose head, or the taking of whose answer, takes too long."""
        limits, waited = self._limits, self.loop.time() - self._since
        if not self._is_asked():
            lies = self.transport.get_write_buffer_size() > 0
            if waited >= (limits.body_timeout_s if lies else limits.head_timeout_s):
                self.transport.abort()
                return
        self._watch = self.loop.call_later(limits.head_timeout_s / 4, self._look)

    def _make_room(self) -> None:
        _log.warning(
            "all of %d connections are open; those that wait for their client make room",
            self._limits.max_connections,
        )
        others = (c for c in self.connections if c is not self and not c.transport.is_closing())
        waiting = [c for c in others if isinstance(c, BoundedConnection) and c._waits()]
        victim = min(waiting, key=lambda connection: connection._since, default=self)
        victim.transport.abort()
