"""Errors as they go over the wire: a canonical code and TensorFlow Serving's message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tfde.errors import TfdeError

MAX_MESSAGE_LENGTH = 1024

CODES = {code.value[0]: code for code in grpc.StatusCode}

# Source: TensorFlow Serving's http_server.cc, ToHTTPStatusCode.
HTTP_STATUS = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}


class StatusError(TfdeError):
    """A request that cannot be answered.

    Args:
        code: The canonical code.
        message: What a client reads.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def grpc_details(self) -> str:
        """Returns the message as gRPC sends it: cut where TensorFlow Serving cuts it."""
        message = self.message.encode("utf-8", "replace")
        if len(message) <= MAX_MESSAGE_LENGTH:
            return self.message
        return message[:MAX_MESSAGE_LENGTH].decode("utf-8", "ignore") + "...TRUNCATED"


@contextmanager
def naming(flag: str) -> Iterator[None]:
    """Errors within say which flag they are about."""
    try:
        yield
    except StatusError as error:
        raise StatusError(error.code, f"{flag}: {error.message}") from error.__cause__


def invalid_argument(*parts: Any) -> StatusError:
    """Returns the error that says the request itself is wrong."""
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, "".join(map(str, parts)))


def not_found(*parts: Any) -> StatusError:
    """Returns the error that says there is no such model or version."""
    return StatusError(grpc.StatusCode.NOT_FOUND, "".join(map(str, parts)))
