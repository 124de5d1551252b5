"""An ASGI application on a port of its own, in a thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from functools import partial
from typing import Any, cast

import uvicorn

from tfde.errors import ServerError
from tfde.serving.server.http_connections import BoundedConnection
from tfde.serving.server.limits import BACKLOG, Limits

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
        raise OSError(f"cannot listen on {host}:{port} ({name}): {error.strerror}") from None
    return listener
