"""The asking side of the load test: one process that sends its share of the questions."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import selectors
import time
from threading import Barrier
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
import numpy as np

from tfde.serving import wire

IDLE_S = 15.0  # a connection is not used again after; a server may just end it
MAX_CONNECTIONS = 500  # REST, a process: select() knows 1,024 files
START_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Load:
    """What one client process asks: `rate` questions a second, drawn from `texts`."""

    protocol: str
    target: str
    model: str
    k: int | None
    timeout_s: float
    texts: list[str]
    rate: float
    warmup_s: float
    duration_s: float
    seed: tuple[int, ...]


class Answer(NamedTuple):
    """One question: seconds from when it was due until sent, and until answered; what came."""

    late_s: float
    seconds: float
    code: str
    detail: str
    answered_at_s: float


class GrpcAsk:
    """Asks a model by Predict; every address behind the target's name gets its share.

    Args:
        target: HOST:PORT.
        model: Its name.
        k: Its second input; `None` for a model that takes a text alone.
        timeout_s: Seconds after which a question has failed.
    """

    def __init__(self, target: str, model: str, *, k: int | None = None, timeout_s: float) -> None:
        self._model, self._k, self._timeout_s = model, k, timeout_s
        options = [("grpc.lb_policy_name", "round_robin"), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(target, options=options)
        stub = wire.prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._predict = stub.Predict

    async def __call__(self, text: str) -> tuple[str, str]:
        """Returns the code, `OK` or gRPC's name, and the server's message."""
        code, detail, _ = await self.answer(text)
        return code, detail

    async def answer(self, text: str) -> tuple[str, str, Any]:
        """Returns the code, the server's message, and the PredictResponse where there is one."""
        request = wire.predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        wire.put_strings(request.inputs["text"], [text])
        if self._k is not None:
            wire.put_int32(request.inputs["k"], self._k)
        try:
            response = await self._predict(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            return error.code().name, _one_line(error.details() or ""), None
        return "OK", "", response

    async def close(self) -> None:
        """Closes the connections."""
        await self._channel.close()


class RestAsk:
    """Asks a retriever, or any path, by POST over connections that are kept.

    Args:
        target: HOST:PORT.
        model: The retriever; "" where only `answer` is called.
        k: How many documents it is asked for.
        timeout_s: Seconds after which a question has failed.
    """

    def __init__(
        self, target: str, model: str = "", *, k: int | None = None, timeout_s: float
    ) -> None:
        self._target, self._model, self._k, self._timeout_s = target, model, k, timeout_s
        host, _, port = target.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def __call__(self, text: str) -> tuple[str, str]:
        """Returns the code, `OK`, `HTTP 503` or what went wrong, and the server's message."""
        path = f"/v1/models/{quote(self._model)}:predict"
        code, detail, _ = await self.answer(path, {"inputs": {"text": [text], "k": self._k}})
        return code, detail

    async def answer(
        self, path: str, message: dict[str, Any], *, key: str = ""
    ) -> tuple[str, str, bytes]:
        """Posts a message as JSON, with a bearer's key if there is one.

        Returns:
            The code, the server's message, and the body of the answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                status, body = await self._post(path, message, key)
        except TimeoutError:
            return "TIMEOUT", f"no answer within {self._timeout_s:g} s", b""
        except (OSError, EOFError, ValueError) as error:
            return "NO ANSWER", _one_line(str(error)), b""
        if status // 100 == 2:
            return "OK", "", body
        return f"HTTP {status}", _one_line(body.decode("utf-8", "replace")), body

    async def close(self) -> None:
        """Closes the connections."""
        for *_, writer in self._idle:
            writer.close()

    async def _post(self, path: str, message: dict[str, Any], key: str) -> tuple[int, bytes]:
        body = json.dumps(message).encode()
        head = (
            f"POST {path} HTTP/1.1\r\n"
            f"Host: {self._target}\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
            + f"Content-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await self._connection()
        try:
            writer.write(head.encode() + body)
            status = (await reader.readuntil(b"\r\n")).split()[1]
            length = 0
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            answer = await reader.readexactly(length)
        except BaseException:  # a request was given up: the connection holds half of an answer
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        return int(status), answer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() - since < IDLE_S and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(*self._address)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def arrivals(rng: np.random.Generator, rate: float, seconds: float) -> np.ndarray:
    """Returns when the questions of a Poisson process are due, in seconds, ascending."""
    expected = rate * seconds
    gaps = rng.exponential(1 / rate, int(expected + 10 * np.sqrt(expected) + 10))
    due = np.cumsum(gaps)
    return due[due < seconds]


def connect(load: Load) -> GrpcAsk | RestAsk:
    """Returns what asks the load's model."""
    kind = GrpcAsk if load.protocol == "grpc" else RestAsk
    return kind(load.target, load.model, k=load.k, timeout_s=load.timeout_s)


async def ask_once(load: Load) -> tuple[str, str]:
    """Returns the code and message of the first question."""
    ask = connect(load)
    try:
        return await ask(load.texts[0])
    finally:
        await ask.close()


async def ask_all(load: Load, together: Barrier) -> list[Answer]:
    """Sends every question when it is due; returns those due after the warm-up."""
    rng = np.random.default_rng(load.seed)
    due = arrivals(rng, load.rate, load.warmup_s + load.duration_s).tolist()
    texts = [load.texts[i] for i in rng.integers(len(load.texts), size=len(due))]
    ask = connect(load)
    await ask(load.texts[0])  # connecting is not part of anybody's answer
    together.wait(START_TIMEOUT_S)
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(when: float, text: str) -> Answer:
        sent = loop.time() - start
        code, detail = await ask(text)
        answered = loop.time() - start
        return Answer(sent - when, answered - when, code, detail, answered - load.warmup_s)

    tasks = []
    for when, text in zip(due, texts, strict=True):
        await asyncio.sleep(max(0.0, start + when - loop.time()))
        tasks.append(asyncio.create_task(one(when, text)))
    answers = await asyncio.gather(*tasks)
    await ask.close()
    return [answer for when, answer in zip(due, answers, strict=True) if when >= load.warmup_s]


_together: Any = None


def remember(together: Barrier) -> None:
    """Keeps the barrier at which the processes of a test meet; for the start of a process."""
    global _together
    _together = together


def run_client(load: Load) -> list[Answer]:
    """Asks everything, in a process of its own."""
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return runner.run(ask_all(load, _together))


def precise_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop whose timers tick in microseconds; epoll's do in milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
