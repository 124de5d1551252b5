"""What goes on in the mixed load: questions with their answers' checks, changes, version swaps."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from answer_check import TOLERANCE, AnswerCheck, Found
from served_world import KEY, World
from training_memory import memory

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from load_client import GrpcAsk, RestAsk

from tfde.errors import TfdeError
from tfde.serving import client as wire
from tfde.serving.client import Client

K = 10
WRONG = "WRONG ANSWER"
SWAPPED = ("retriever", "query_encoder")


class Asker:
    """Asks each kind of question and checks the answer."""

    def __init__(self, world: World, grpc_target: str, http_target: str, timeout_s: float) -> None:
        self.http = RestAsk(http_target, timeout_s=timeout_s)
        self._grpc = {
            "retriever": GrpcAsk(grpc_target, "retriever", k=K, timeout_s=timeout_s),
            "query_encoder": GrpcAsk(grpc_target, "query_encoder", timeout_s=timeout_s),
        }
        self._world = world
        self._texts = [*world.queries, *(document.text for document in world.documents)]
        self._columns = {document.text: n for n, document in enumerate(world.documents)}
        self._numbers = {document.doc_id: n for n, document in enumerate(world.documents)}
        ids = dict(enumerate(document.doc_id for document in world.documents))
        half = world.live // 2
        self._of_version = [
            AnswerCheck(world.similarity, {n: i for n, i in ids.items() if n >= half}),
            AnswerCheck(world.similarity, {n: i for n, i in ids.items() if n < world.live}),
        ]
        self.live = AnswerCheck(world.similarity, {n: i for n, i in ids.items() if n < world.live})
        self.versions: set[int] = set()

    async def __call__(self, kind: str, query: int) -> tuple[str, str]:
        """Returns the code, `OK` or what went wrong, and a line about it."""
        if kind == "search":
            code, detail, _ = await self.search(query)
            return code, detail
        if kind == "embeddings":
            message = {"input": self._texts[query], "encoding_format": "base64"}
            code, detail, body = await self.http.answer("/v1/embeddings", message)
            if code != "OK":
                return code, detail
            row = np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), "<f4")
            return self._embedding(row, query)
        code, detail, response = await self._grpc[kind].answer(self._texts[query])
        if code != "OK":
            return code, detail
        if kind == "query_encoder":
            return self._embedding(wire.floats(response.outputs["embeddings"])[0], query)
        number = response.model_spec.version.value
        self.versions.add(number)
        ids = wire.strings(response.outputs["doc_ids"])[0]
        scores = wire.floats(response.outputs["scores"])[0]
        if not set(ids) <= self._numbers.keys():
            return WRONG, f"version {number}: unknown ids among {list(ids)}"
        found = [Found(i, self._numbers[i], s) for i, s in zip(ids, scores, strict=True)]
        fault = self._of_version[number % 2].fault(query, K, found, asked_at=0.0)
        return (WRONG, f"version {number}: {fault}") if fault else ("OK", "")

    async def search(self, query: int) -> tuple[str, str, dict[str, int]]:
        """Searches the live index; returns code, detail and the texts that were found, by id."""
        asked_at = self.live.clock()
        message = {"query": self._texts[query], "k": K}
        code, detail, body = await self.http.answer("/v1/search", message)
        if code != "OK":
            return code, detail, {}
        hits = json.loads(body)["results"][0]["hits"]
        if unknown := [hit["doc_id"] for hit in hits if hit["text"] not in self._columns]:
            return WRONG, f"{unknown[0]} shows a text that nobody wrote", {}
        found = [Found(h["doc_id"], self._columns[h["text"]], h["score"]) for h in hits]
        fault = self.live.fault(query, K, found, asked_at=asked_at)
        return WRONG if fault else "OK", fault, {hit.doc_id: hit.text for hit in found}

    async def close(self) -> None:
        """Closes the connections."""
        for ask in (self.http, *self._grpc.values()):
            await ask.close()

    def _embedding(self, row: np.ndarray, query: int) -> tuple[str, str]:
        expected = self._world.query_embeddings[query]
        if row.shape != expected.shape or not np.allclose(row, expected, atol=TOLERANCE):
            return WRONG, f"an embedding differs from Keras's (query {query})"
        return "OK", ""


class Changes:
    """Adds, replaces and deletes documents, one batch after the other, and looks at each."""

    def __init__(self, world: World, ask: Asker, rng: np.random.Generator) -> None:
        self._world, self._ask, self._rng = world, ask, rng
        self._spare = list(range(world.live, len(world.documents)))
        self._next_id = 0
        self._codes: Counter[str] = Counter()
        self._faults: list[str] = []
        self._counts: Counter[str] = Counter()

    async def run(self, every_s: float, compact_s: float) -> None:
        """Makes changes until it is cancelled."""
        compacted = time.monotonic()
        while True:
            await asyncio.sleep(self._rng.exponential(every_s))
            await self._change()
            if time.monotonic() - compacted > compact_s:
                compacted = time.monotonic()
                code, detail, _ = await self._ask.http.answer("/v1/index/compact", {}, key=KEY)
                if code != "HTTP 409":  # the one before is still under way
                    self._note(code, detail)

    def figures(self) -> dict[str, Any]:
        """Returns documents changed, calls by code (searches for them too), and faults."""
        return {
            "documents": dict(self._counts),
            "calls": dict(self._codes),
            "faults": self._faults,
        }

    async def _change(self) -> None:
        live = list(self._ask.live.texts)
        size = int(self._rng.integers(1, 5))
        kinds = ["add", "replace"] if len(self._spare) >= size else []
        if len(live) - size > len(self._world.documents) // 2:
            kinds.append("delete")
        kind = str(self._rng.choice(kinds))
        if kind == "add":
            doc_ids = [f"new-{self._next_id + n}" for n in range(size)]
            self._next_id += size
        else:
            doc_ids = [live[n] for n in self._rng.choice(len(live), size, replace=False)]
        old = {doc_id: self._ask.live.texts.get(doc_id) for doc_id in doc_ids}
        new: dict[str, int | None] = dict.fromkeys(doc_ids)
        path, message = "/v1/index/delete", {"ids": doc_ids}
        if kind != "delete":
            chosen = self._rng.choice(len(self._spare), size, replace=False)
            new = {i: self._spare[n] for i, n in zip(doc_ids, chosen, strict=True)}
            texts = {i: self._world.documents[n].text for i, n in new.items()}
            path = "/v1/index/documents"
            message = {"documents": [{"id": i, "text": text} for i, text in texts.items()]}
        self._ask.live.sent(new)
        code, detail, _ = await self._ask.http.answer(path, message, key=KEY)
        self._note(code, detail)
        if code != "OK":  # whether it was made is not known: its texts are never certain again
            return
        self._ask.live.acknowledged(new)
        self._counts[kind] += size
        taken, left = set(new.values()), [text for text in old.values() if text is not None]
        self._spare = [text for text in self._spare if text not in taken] + left
        for doc_id in doc_ids:
            await self._look(doc_id, old[doc_id], new[doc_id])

    async def _look(self, doc_id: str, old: int | None, new: int | None) -> None:
        """Searches the old text and the new; the check knows that the change is made."""
        for text in (old, new):
            if text is not None:
                code, detail, found = await self._ask.search(len(self._world.queries) + text)
                self._note(code, detail)
                if text == new:
                    self._counts["looked for"] += 1
                    self._counts["found by own text"] += found.get(doc_id) == text

    def _note(self, code: str, detail: str) -> None:
        self._codes[code] += 1
        if code != "OK" and len(self._faults) < 10:
            self._faults.append(f"{code}: {detail}")


class Swaps:
    """Copies new versions into the base paths and removes the old ones."""

    def __init__(self, world: World, base: Path) -> None:
        self._world, self._base = world, base
        self._number = 0
        self._seconds: list[float] = []
        self._failed: list[str] = []

    async def run(self, target: str, every_s: float) -> None:
        """Swaps until it is cancelled."""
        while True:
            await asyncio.sleep(every_s)
            started = time.monotonic()
            old = self._number
            try:
                await asyncio.to_thread(self.copy_next)
                await self._until_swapped(target, old)
            except (OSError, TimeoutError, TfdeError) as error:
                self._failed.append(f"{type(error).__name__}: {error}")
                continue
            for name in SWAPPED:
                await asyncio.to_thread(shutil.rmtree, self._base / name / str(old))
            self._seconds.append(time.monotonic() - started)

    def copy_next(self) -> None:
        """Puts the next version beside the one before."""
        self._number += 1
        for name in SWAPPED:
            unfinished = self._base / name / "unfinished"
            shutil.copytree(self._world.versions[self._number % 2] / name / "1", unfinished)
            unfinished.rename(self._base / name / str(self._number))

    def figures(self) -> dict[str, Any]:
        """Returns how many swaps were made, and the seconds until only the new version was left."""
        seconds = (
            {"p50": np.median(self._seconds), "max": max(self._seconds)} if self._seconds else {}
        )
        return {
            "made": len(self._seconds),
            "seconds": {name: round(float(value), 1) for name, value in seconds.items()},
            "failed": self._failed,
        }

    async def _until_swapped(self, target: str, old: int) -> None:
        with Client(target) as client:
            async with asyncio.timeout(120):
                for name in SWAPPED:
                    while True:
                        states = await asyncio.to_thread(client.status, name)
                        if states.get(self._number) == "AVAILABLE" and states.get(old) == "END":
                            break
                        await asyncio.sleep(0.2)


class MemoryUse:
    """Resident memory of processes, sampled."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}

    async def run(self, every_s: float) -> None:
        """Samples until it is cancelled."""
        while True:
            for name, pid in self._pids.items():
                self.samples[name].append((time.monotonic(), memory(pid, "VmRSS") / 2**20))
            await asyncio.sleep(every_s)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns MiB of the first and the last third, and the slope."""
        found = {}
        for name, samples in self.samples.items():
            seconds, mib = np.array(samples).T
            third = max(1, len(mib) // 3)
            slope = np.polyfit(seconds - seconds[0], mib, 1)[0] if len(mib) > 1 else 0.0
            found[name] = {
                "first_third_mib": round(float(mib[:third].mean()), 1),
                "last_third_mib": round(float(mib[-third:].mean()), 1),
                "mib_per_hour": round(3600 * float(slope), 1),
                "samples": len(mib),
            }
        return found
