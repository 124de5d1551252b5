"""An ASGI application on a port of its own, in a thread."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfde.errors import ServerError
from tfde.serving.server.limits import BACKLOG, Limits

# Each chunk of a body costs the event loop as much as a small request, however small it is.
_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 64
# Longer than the 60 s after which load balancers usually end their own side: a request that meets
# the end of a connection fails, and a POST is not sent again.
_IDLE_S = 75
_LAST_REQUEST_S = 0.5
_log = logging.getLogger(__name__)


class HttpThread:
    """Has its port from the beginning, so that a taken one is known at once; listens when started.

    Args:
        name: What is served, for messages.
        host: Address to listen on.
        port: Port; 0 takes a free one.
        limits: How many connections, how long they may wait, and how long running requests get
            when it stops.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, name: str, host: str, port: int, *, limits: Limits | None = None) -> None:
        self._name = name
        self._host = host
        self._limits = limits or Limits()
        self._server: Any = None
        self._failures: list[BaseException] = []
        self._listener = bound_socket(name, host, port)
        # Connections inherit it; without it an answer's body waits 40 ms for the client's
        # acknowledgement of the head (asyncio sets it only where the protocol's number is given).
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listener.getsockname()[1]

    def start(self, app: Any) -> None:
        """Answers requests with an application.

        Raises:
            ServerError: the HTTP server does not start.
        """
        # uvicorn calls it as it does its own class.
        connection = cast(
            "type[BoundedConnection]", partial(BoundedConnection, limits=self._limits)
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                http=connection,
                ws="none",
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=int(self._limits.drain_timeout_s),
            )
        )
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        if not self._server.started:
            cause = self._failures[0] if self._failures else None
            raise ServerError(
                f"the {self._name} server must start on {self._host}:{self.port}."
                f" Received: {cause!r}"
            ) from cause

    def refuse(self) -> None:
        """Takes no new requests; `join` waits for the running ones."""
        if self._server:
            self._server.should_exit = True
        else:
            self._listener.close()

    def join(self, timeout_s: float) -> None:
        """Waits until the running requests are answered, or the time is over."""
        if self._server:
            self._thread.join(timeout=max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        except BaseException as error:  # uvicorn exits the process when it cannot start
            self._failures.append(error)
            if self._server.started:
                _log.exception("the %s server ended", self._name)


def bound_socket(name: str, host: str, port: int) -> socket.socket:
    """Returns a socket that has a port and does not listen yet; 0 takes a free port.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if port:  # else two servers could be given the same free one
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:  # `::` takes IPv4 too, as gRPC does
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "; another port, or 0 for a free one?" if error.errno == errno.EADDRINUSE else ""
        message = f"cannot listen on {host}:{port} ({name}): {error.strerror}{hint}"
        raise OSError(message) from None
    return listener


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
        self._drains = False

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
        if self._drains and self._is_asked():
            self._say_close()

    def send_400_response(self, msg: str) -> None:
        """Says why a request is not taken."""
        super().send_400_response(self._reader.refusal or msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing, for uvicorn would advise to install WebSockets, which nothing here speaks.

        A client that would rather speak HTTP/2 (`Upgrade: h2c`, as Java's does) gets HTTP/1.1.
        """

    def shutdown(self) -> None:
        """Ends the connection after an answer that says so, for the client's next request.

        Where there is none to give, after a moment: a request may be on its way, and a POST that
        is lost is not sent again. Source: RFC 9112, 9.6.
        """
        self._drains = True
        if self._is_asked():
            self._say_close()
        else:
            self.loop.call_later(_LAST_REQUEST_S, self._shut_down)

    def _shut_down(self) -> None:
        if not self._is_asked() and not self.transport.is_closing():
            super().shutdown()

    def _say_close(self) -> None:
        headers = self.cycle.scope["headers"]
        if CLOSE_HEADER not in headers:
            self.cycle.scope["headers"] = [*headers, CLOSE_HEADER]
        super().shutdown()

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
            idles = not lies and self.timeout_keep_alive_task is not None
            if not idles and waited >= (limits.body_timeout_s if lies else limits.head_timeout_s):
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
