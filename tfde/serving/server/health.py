"""gRPC's health service: all that answers is well, until the server stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2

from tfde.serving.server.status import StatusError

_SERVICES = ("", "ModelService", "PredictionService")  # as upstream names them


class Health:
    """What Check and Watch answer, and the streams of those who watch."""

    def __init__(self) -> None:
        self._servicer = health.HealthServicer()
        for name in _SERVICES:
            self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._watchers: set[Callable[[Message | None], None]] = set()

    def check(self, request: Any) -> Message:
        """Answers Check.

        Raises:
            StatusError: NOT_FOUND, no such service.
        """
        if request.service not in _SERVICES:
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def watch(
        self,
        request: Any,
        context: grpc.ServicerContext,
        send: Callable[[Message | None], None],
    ) -> None:
        """Tells a watcher the state, and whatever becomes of it."""
        self._watchers.add(send)
        context.add_callback(lambda: self._watchers.discard(send))
        self._servicer.Watch(request, context, send)

    def end(self) -> None:
        """Tells watchers that the server stops, and ends their streams: a stop waits for all."""
        self._servicer.enter_graceful_shutdown()
        for send in list(self._watchers):
            send(None)
