"""An ASGI application behind bounds: bodies, their unpacking, time, and clients that leave."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from grpc import StatusCode

from tfde.errors import shorten
from tfde.serving.server.calls import Call, begin_call
from tfde.serving.server.limits import Limits
from tfde.serving.server.status import HTTP_STATUS, StatusError

_GZIP = 31  # zlib's number for a gzip stream with the largest window
_STREAMS = 16  # of one body
# In which a client that is refused may go on sending, so that it reads why; not for ever, for
# reading costs the others time.
_LINGER_S = 2.0
_LINGER_BYTES = 4 * 2**20
_AFTER_S = 1.0  # that an application gets to say itself that a request's time is over

_log = logging.getLogger(__name__)

Write = Callable[[StatusCode, str], bytes]
Admit = Callable[[Any], None]


class _BodyError(StatusError):
    """A body that HTTP has a status of its own for."""

    def __init__(self, status: int, rule: str) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, rule)
        self.status = status


class BoundedHttp:
    """Reads each request's body whole and within the limits before the application sees it.

    The application gets one message with the unpacked body. It works for a `Call`, which tells
    the time that is left and whether the client has gone; of a request whose time is over the
    client hears here.

    Args:
        app: The ASGI application; its answers are small enough to be sent at once.
        limits: The bounds.
        timeout_s: Seconds for a request, from when its body is there; `None` for no limit.
        write: Returns the JSON body of an error.
        admit: Raises a StatusError for a request (its ASGI scope) that may not even be read.
    """

    def __init__(
        self,
        app: Any,
        limits: Limits,
        *,
        timeout_s: float | None,
        write: Write,
        admit: Admit | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._timeout_s = timeout_s
        self._write = write
        self._admit = admit
        self._in_hand = 0  # bytes; this runs in one event loop
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request (the ASGI interface)."""
        held = _Held(self)
        scope = _with_path(scope)
        try:
            if self._admit is not None:
                self._admit(scope)
            body = await self._read(scope, receive, held)
        except StatusError as error:
            held.give_back()  # before the client is heard out: others may have the place
            await self._refuse(error, None if held.whole else receive, send)
            return
        except BaseException:
            held.give_back()
            raise
        if body is None:  # the client has gone
            held.give_back()
            return
        call = Call(self._timeout_s)
        begin_call(call)
        answer = _Answer(send)
        task = asyncio.get_running_loop().create_task(
            self._app(_unpacked(scope), _replay(body), answer)
        )
        self._running.add(task)  # it may go on when this ends
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: held.give_back())
        gone = asyncio.ensure_future(receive())
        try:
            limit = None if self._timeout_s is None else self._timeout_s + _AFTER_S
            await asyncio.wait({task, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return
            call.leave()
            answer.ends()
            # Its threads cannot be ended. What they work on stays in hand until they end.
            task.add_done_callback(_look_at)
            if not gone.done() and not answer.begun:
                await self._refuse(
                    StatusError(StatusCode.DEADLINE_EXCEEDED, "the request's time is over"),
                    None,
                    send,
                )
        finally:
            gone.cancel()

    async def _read(self, scope: Any, receive: Any, held: _Held) -> bytes | None:
        """Returns the body; `None` where the client has gone."""
        headers = dict(scope["headers"])
        largest = self._limits.max_request_bytes
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            # Source: RFC 9112, 6.1; a proxy before us may have read another length.
            rule = "a request must have a Content-Length or a Transfer-Encoding, not both"
            raise _BodyError(400, rule)
        declared = headers.get(b"content-length", b"0")
        if int(declared) > largest:
            raise _too_large(largest, f"{int(declared)}")
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    held.take(len(chunks[-1]))
                    more = " and more" if message.get("more_body") else ""
                    held.whole = not more
                    if held.size > largest:
                        raise _too_large(largest, f"{held.size}{more}")
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            seconds = self._limits.body_timeout_s
            rule = f"the body must come within {seconds:g} s (--body_timeout_s)"
            raise _BodyError(408, rule) from None
        body = b"".join(chunks)
        codings = headers.get(b"content-encoding", b"").lower().split(b",")
        codings = [name for name in map(bytes.strip, codings) if name not in (b"", b"identity")]
        if codings and codings not in ([b"gzip"], [b"x-gzip"]):
            received = b", ".join(codings).decode("latin-1")
            raise _BodyError(
                415, f"the body's Content-Encoding must be gzip. Received: {shorten(received)}"
            )
        if codings:
            packed = body
            body = await asyncio.to_thread(_uncompressed, packed, largest)
            held.take(len(body))
        await self._check_json(body)
        return body

    async def _check_json(self, body: bytes) -> None:
        """Refuses what `json.loads` takes long for, which lets nothing else run meanwhile."""
        most = self._limits.max_json_lists
        if len(body) <= most:
            return
        what, found = "brackets [ and {", body.count(b"[") + body.count(b"{")
        if found <= most and body.count(b":") > most:
            what, found = "names", await asyncio.to_thread(_count_names, body)
        if found > most:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"the body must have at most {most} {what} (--max_json_lists). Received: {found}",
            )

    async def _refuse(self, error: StatusError, receive: Any, send: Any) -> None:
        status = error.status if isinstance(error, _BodyError) else HTTP_STATUS[error.code]
        body = self._write(error.code, error.message)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if error.code == StatusCode.UNAUTHENTICATED:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
        if receive is None:
            return
        # A connection that is closed with bytes unread is reset, and the answer lost with it.
        read = 0
        try:
            async with asyncio.timeout(_LINGER_S):
                more = True
                while more and read <= _LINGER_BYTES:
                    message = await receive()
                    read += len(message.get("body", b""))
                    more = bool(message.get("more_body"))
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})

    def _take(self, size: int) -> None:
        if self._in_hand + size > self._limits.max_bytes_in_hand:
            raise StatusError(
                StatusCode.UNAVAILABLE,
                f"the bodies of this port's requests have {self._limits.max_bytes_in_hand} bytes"
                " together, as many as they may (--max_bytes_in_hand); try again",
            )
        self._in_hand += size

    def _give_back(self, size: int) -> None:
        self._in_hand -= size


class _Held:
    """What a request has of the bytes that the port may hold."""

    def __init__(self, port: BoundedHttp) -> None:
        self._port = port
        self.size = 0
        self.whole = False  # whether all of its body has come

    def take(self, size: int) -> None:
        self._port._take(size)
        self.size += size

    def give_back(self) -> None:
        self._port._give_back(self.size)
        self.size = 0


class _Answer:
    """Sends what an application answers, until somebody else has answered."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._ended = False
        self.begun = False

    def ends(self) -> None:
        self._ended = True

    async def __call__(self, message: Any) -> None:
        if not self._ended:
            self.begun = True
            await self._send(message)


def _with_path(scope: Any) -> Any:
    """Returns the scope with a path, where the request names a whole address.

    Source: RFC 9112, 3.2.2.
    """
    target = scope.get("raw_path", b"")
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https") or not rest:
        return scope
    _, slash, path = rest.partition(b"/")
    raw = b"/" + path if slash else b"/"
    return {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}


def _replay(body: bytes) -> Any:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()  # told by `Call`, not here

    return receive


def _unpacked(scope: Any) -> Any:
    """Returns the scope without what no longer is true of the body."""
    gone = (b"content-encoding", b"content-length", b"transfer-encoding")
    kept = [header for header in scope["headers"] if header[0] not in gone]
    return {**scope, "headers": kept}


def _uncompressed(body: bytes, largest: int) -> bytes:
    """Returns what gzip packed; it may be in a few streams one behind the other."""
    content, rest = b"", body
    for _ in range(_STREAMS):
        unpacking = zlib.decompressobj(_GZIP)
        try:
            content += unpacking.decompress(rest, largest + 1 - len(content))
        except zlib.error as error:
            raise _not_gzip(str(error)) from None
        if len(content) > largest:
            raise _too_large(largest, f"more, from {len(body)} packed ones")
        if not unpacking.eof:
            raise _not_gzip("its end is missing")
        rest = unpacking.unused_data
        if not rest:
            return content
    raise _not_gzip(f"more than {_STREAMS} streams")


def without_escapes(body: bytes) -> bytes:
    """Returns JSON without its escaped quotes and backslashes: each quote bounds a string."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _count_names(body: bytes) -> int:
    return b"".join(without_escapes(body).split(b'"')[::2]).count(b":")


def _not_gzip(reason: str) -> StatusError:
    return StatusError(
        StatusCode.INVALID_ARGUMENT, f"The body cannot be uncompressed by gzip: {reason}"
    )


def _too_large(largest: int, received: str) -> _BodyError:
    return _BodyError(
        413,
        f"the body must have at most {largest} bytes (--max_request_bytes). Received: {received}",
    )


def _look_at(task: asyncio.Task[None]) -> None:
    """Takes notice of how a task ended for which nobody waits any more."""
    if not task.cancelled() and task.exception() is not None:
        _log.debug("a request that nobody waits for: %r", task.exception())
