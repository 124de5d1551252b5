"""Who asks on the day of operations, and who changes the index; every answer is checked."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from day_check import ABSENT, TOLERANCE, IndexHistory, VersionHistory
from day_world import KEY, Server, World, index_status

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from load_client import RestAsk

from tfde.errors import ServerError
from tfde.serving.client import Client

K = 10
OK, WRONG, DOWN = "OK", "WRONG ANSWER", "SERVER DOWN"
BUNDLE_HTTP, BUNDLE_GRPC = "bundle, HTTP", "bundle, gRPC"
INDEX_HTTP, EMBEDDINGS = "live index, HTTP", "embeddings, HTTP"
SHARES = {BUNDLE_HTTP: 0.3, BUNDLE_GRPC: 0.3, INDEX_HTTP: 0.3, EMBEDDINGS: 0.1}
SEED_OF_QUESTIONS, SEED_OF_CHANGES = 1, 2
_THREADS = 64  # of tfde.Client, which waits for its answer


class Answer(NamedTuple):
    """A question: when it was due, when it was answered, and how."""

    kind: str
    due: float
    now: float
    code: str
    detail: str


class Asker:
    """Asks both servers and checks what they say.

    Args:
        world: What is true.
        bundle: The server of the bundle's versions.
        index: The server of the live index.
        timeout_s: Seconds after which a request has failed.
    """

    def __init__(self, world: World, bundle: Server, index: Server, timeout_s: float) -> None:
        self.versions = VersionHistory(world.truth, 1, world.state_of(1))
        self.history = IndexHistory(world.truth, world.state_of(1))
        self.index = index
        self.recent: deque[int] = deque(maxlen=50)  # texts that came or went
        self.admin = RestAsk(index.http, timeout_s=timeout_s)
        self._world, self._bundle = world, bundle
        self._http = {
            server: RestAsk(server.http, timeout_s=timeout_s) for server in (bundle, index)
        }
        self._client = Client(bundle.grpc, timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(_THREADS)
        self._rng = np.random.default_rng(SEED_OF_QUESTIONS)

    async def ask(self, due: float | None = None) -> Answer:
        """Asks something.

        Args:
            due: When it was due; `None` is now.
        """
        kind = str(self._rng.choice(list(SHARES), p=list(SHARES.values())))
        query = int(self._rng.integers(len(self._world.queries)))
        if self.recent and self._rng.random() < 0.5:
            query = self._world.first_text + int(self._rng.choice(self.recent))
        asked_at = time.monotonic()
        server = self._bundle if kind in (BUNDLE_HTTP, BUNDLE_GRPC) else self.index
        code, detail = await {
            BUNDLE_HTTP: self._bundle_http,
            BUNDLE_GRPC: self._bundle_grpc,
            INDEX_HTTP: self.search_index,
            EMBEDDINGS: self._embed,
        }[kind](query)
        now = time.monotonic()
        if code not in (OK, WRONG) and server.was_down(asked_at, now):
            code = DOWN
        return Answer(kind, asked_at if due is None else due, now, code, detail)

    async def search_index(self, query: int, k: int = K) -> tuple[str, str]:
        """Searches the live index; returns the code and what is wrong."""
        floor = self.history.floor()
        code, detail, answer = await self._search(self.index, query, k)
        if code != OK:
            return code, detail
        hits, version = answer["results"][0]["hits"], answer["index_version"]
        fault = self.history.fault(query, k, hits, version=version, floor=floor)
        return (WRONG, fault) if fault else (OK, "")

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
        self._threads.shutdown()

    async def _bundle_http(self, query: int) -> tuple[str, str]:
        asked_at = time.monotonic()
        code, detail, answer = await self._search(self._bundle, query, K)
        if code != OK:
            return code, detail
        return self._judged(query, asked_at, answer["results"][0]["hits"], answer["version"])

    async def _bundle_grpc(self, query: int) -> tuple[str, str]:
        loop, asked_at = asyncio.get_running_loop(), time.monotonic()
        texts = [self._world.queries[query]]
        try:
            found = await loop.run_in_executor(self._threads, self._client.search, texts, K)
        except ServerError as error:
            cause = error.__cause__
            return cause.code().name if isinstance(cause, grpc.RpcError) else "ERROR", str(error)
        return self._judged(query, asked_at, [hit.record() for hit in found[0]], None)

    def _judged(
        self, query: int, asked_at: float, hits: list[dict[str, Any]], version: int | None
    ) -> tuple[str, str]:
        fault = self.versions.fault(
            query, K, hits, asked_at=asked_at, now=time.monotonic(), version=version
        )
        return (WRONG, fault) if fault else (OK, "")

    async def _search(self, server: Server, query: int, k: int) -> tuple[str, str, dict[str, Any]]:
        whole = bool(query % 2)  # else the snippets alone
        message = {"query": self._world.queries[query], "k": k, "texts": whole}
        code, detail, body = await self._http[server].answer("/v1/search", message)
        return code, detail, json.loads(body) if code == OK else {}

    async def _embed(self, query: int) -> tuple[str, str]:
        message = {"input": self._world.queries[query], "encoding_format": "base64"}
        code, detail, body = await self._http[self.index].answer("/v1/embeddings", message)
        if code != OK:
            return code, detail
        row = np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), "<f4")
        expected = self._world.query_embeddings[query]
        if row.shape != expected.shape or not np.allclose(row, expected, atol=TOLERANCE):
            return WRONG, f"the embedding of query {query} is not Keras's"
        return OK, ""


class Changes:
    """Adds, replaces and deletes documents, one batch after the other.

    Args:
        world: The texts.
        asker: Whose histories are told.
    """

    def __init__(self, world: World, asker: Asker) -> None:
        self._world, self._asker = world, asker
        self._rng = np.random.default_rng(SEED_OF_CHANGES)

    async def make(self) -> tuple[str, str, str]:
        """Makes a change; returns its kind, the code and what is wrong."""
        history, index = self._asker.history, self._asker.index
        await index.up.wait()
        kind, changes = self._draw(history.state)
        history.sent(changes)
        self._asker.recent.extend(text for text in changes.values() if text != ABSENT)
        if kind == "delete":
            path, message = "delete", {"ids": [f"d{number}" for number in changes]}
        else:
            documents = [
                {"id": f"d{n}", "title": self._text(t).title, "text": self._text(t).text}
                for n, t in changes.items()
            ]
            path, message = "documents", {"documents": documents}
        asked_at = time.monotonic()
        code, detail, body = await self._asker.admin.answer(f"/v1/index/{path}", message, key=KEY)
        if code == OK:
            sequence = json.loads(body)["sequence"]
        else:  # whether it was made is for the server to say
            if index.was_down(asked_at, time.monotonic()):
                code = DOWN
            await index.up.wait()
            sequence = (await asyncio.to_thread(index_status, index.http))["sequence"]
        fault = history.settled(sequence)
        return kind, WRONG if fault else code, fault or detail

    def _draw(self, state: np.ndarray) -> tuple[str, dict[int, int]]:
        """Returns a kind of change, and texts by number of their ids."""
        there, free = np.flatnonzero(state != ABSENT), np.flatnonzero(state == ABSENT)
        size = int(self._rng.integers(1, 5))
        kinds = ["replace"] if len(there) >= size else []
        kinds += ["add"] if len(free) >= size else []
        kinds += ["delete"] if len(there) > self._world.live // 2 else []
        kind = str(self._rng.choice(kinds))
        numbers = self._rng.choice(free if kind == "add" else there, size, replace=False).tolist()
        texts = self._rng.choice(len(self._world.truth.documents), size, replace=False).tolist()
        return kind, dict(zip(numbers, [ABSENT] * size if kind == "delete" else texts, strict=True))

    def _text(self, number: int) -> Any:
        return self._world.truth.documents[number]
