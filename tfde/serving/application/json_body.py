"""The JSON of the application's requests: where it is large, read off the event loop and bounded.

`json.loads` lets nothing else run in the process until it is done. Of 32 MiB of numbers or names
that takes seconds, of 32 MiB of texts a twentieth of one; no call takes anything but texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from tfde.serving.server.bounded_http import without_escapes
from tfde.storage.json_file import json_fault

SMALL_BYTES = 1 << 16  # is read within a millisecond
MAX_STRINGS = 1 << 15
MAX_BESIDE_STRINGS = 1 << 20


def parse_json(body: bytes) -> Any:
    """Returns the value of a body.

    Raises:
        json.JSONDecodeError: it is no JSON.
        HTTPException: status 400: too many strings, too much beside them, or nested too deep.
    """
    if len(body) > SMALL_BYTES:
        _check(body)
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise  # which FastAPI tells
    except (ValueError, RecursionError) as error:
        raise _refused(f"the body must be JSON: {json_fault(error)}") from error


def _check(body: bytes) -> None:
    plain = without_escapes(body)  # now each quote begins or ends one
    if (strings := plain.count(b'"') // 2) > MAX_STRINGS:
        raise _refused(
            f"the body's JSON must have at most {MAX_STRINGS} strings, names among them."
            f" Received: {strings}"
        )
    if (beside := sum(map(len, plain.split(b'"')[::2]))) > MAX_BESIDE_STRINGS:
        raise _refused(
            f"the body's JSON must have at most {MAX_BESIDE_STRINGS} bytes beside its strings."
            f" Received: {beside}"
        )


def _refused(message: str) -> HTTPException:
    return HTTPException(400, message)


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL_BYTES:
            return parse_json(body)
        return await run_in_threadpool(parse_json, body)


class JsonRoute(APIRoute):
    """A route whose requests' JSON is read by `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns what answers a request."""
        answer = super().get_route_handler()

        async def answer_json(request: Request) -> Response:
            return await answer(_JsonRequest(request.scope, request.receive))

        return answer_json
