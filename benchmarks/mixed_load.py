"""Does anything fail, lie or grow while all that is served changes under load? And at overload?

    python benchmarks/mixed_load.py [--minutes 10] [--overload] [--model DIR] [--dataset DIR]

Two servers. `tfde serve BUNDLE --index I --admin_key_file F` answers /v1/search and /v1/embeddings
while documents are added, replaced and deleted over HTTP, and compactions run. `tfde-model-server
--enable_batching --lenient_batching` answers Predict (a retriever, a query encoder) over gRPC while
new versions are copied into its base paths and old ones removed. A live index belongs to the
towers it was started with, so versions are swapped in the second server only.

First the capacity: so many clients that each wait for an answer, with all changes under way. Then
questions at 80 % of it, at random times (Poisson) whether or not earlier ones are answered. Every
answer is checked: ids and scores from gRPC against the version that the answer names (odd and even
versions hold different documents), those of the live index against all that was acknowledged
before the question (`answer_check.py`), embeddings against Keras. After every change its documents
are searched by their own texts. Latencies count from when a question was due.

`--overload` then starts a model server with a batching queue of few places and asks its query
encoder at 5 times its capacity: what p99 the served ones have and what the queue allows (twice the
time that its places take at capacity), how quickly the others are refused, and whether all is well
afterwards. Prints one JSON object; the exit code is 1 if a request failed, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from changing_load import SWAPPED, WRONG, Asker, Changes, K, MemoryUse, Swaps
from served_world import SEED, World, index_status, make_world, model_server, search_server

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from load_client import Answer, arrivals, precise_loop
from load_test import LATE_S, percentiles_ms

import tfde

SHARES = {"retriever": 0.4, "query_encoder": 0.2, "search": 0.3, "embeddings": 0.1}
MAX_DOCUMENTS = 19_999  # below this an index of default parameters is exact
# The queue of the overload: places for as many requests, which wait in threads of their own. Who
# finds no thread is refused before anything is parsed.
BATCH, WAITING_BATCHES, BATCH_THREADS = 8, 4, 2
PLACES = BATCH * (WAITING_BATCHES + BATCH_THREADS)
WAITING = 1  # for a thread
QUEUE = (
    f"max_batch_size {{ value: {BATCH} }} max_enqueued_batches {{ value: {WAITING_BATCHES} }}"
    f" num_batch_threads {{ value: {BATCH_THREADS} }} batch_timeout_micros {{ value: 0 }}"
)
OVERLOAD = 5
# The queue is full; nobody more may wait; gRPC's core has more than 1,000 for Python to take.
REFUSED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")

Ask = Callable[[str, int], Awaitable[tuple[str, str]]]


class Questions:
    """Draws kinds by their shares, and queries."""

    def __init__(self, shares: dict[str, float], queries: int, rng: np.random.Generator) -> None:
        self._kinds, self._shares = list(shares), list(shares.values())
        self._queries, self.rng = queries, rng

    def __iter__(self) -> Iterator[tuple[str, int]]:
        while True:
            kinds = self.rng.choice(self._kinds, 1000, p=self._shares)
            queries = self.rng.integers(self._queries, size=1000)
            yield from zip(map(str, kinds), queries.tolist(), strict=True)


async def closed_loop(ask: Ask, questions: Questions, clients: int, seconds: float) -> list[Answer]:
    """Lets clients ask one question after the other; returns their answers."""
    start, answers, drawn = time.monotonic(), [], iter(questions)

    async def client() -> None:
        while (sent := time.monotonic() - start) < seconds:
            code, detail = await ask(*next(drawn))
            answered = time.monotonic() - start
            answers.append(Answer(0.0, answered - sent, code, detail, answered))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def open_loop(
    ask: Ask, questions: Questions, rate: float, seconds: float
) -> dict[str, list[Answer]]:
    """Asks at random times; returns answers by kind, their times from when they were due."""
    due = arrivals(questions.rng, rate, seconds).tolist()
    start, answers = time.monotonic(), {}

    async def one(when: float, kind: str, query: int) -> None:
        sent = time.monotonic() - start
        code, detail = await ask(kind, query)
        answered = time.monotonic() - start
        answer = Answer(sent - when, answered - when, code, detail, answered)
        answers.setdefault(kind, []).append(answer)

    async with asyncio.TaskGroup() as tasks:
        for when, question in zip(due, questions, strict=False):
            await asyncio.sleep(max(0.0, start + when - time.monotonic()))
            tasks.create_task(one(when, *question))
    return answers


def answered_per_s(answers: Sequence[Answer]) -> float:
    good = [answer.answered_at_s for answer in answers if answer.code == "OK"]
    return round(len(good) / max(good), 1) if good else 0.0


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns requests by code, and how long each took."""
    codes: dict[str, list[Answer]] = {}
    for answer in answers:
        codes.setdefault(answer.code, []).append(answer)
    return {
        "requests": len(answers),
        "failed": sum(len(some) for code, some in codes.items() if code not in ("OK", WRONG)),
        "wrong": len(codes.get(WRONG, [])),
        "late_starts": sum(answer.late_s > LATE_S for answer in answers),
        "codes": {
            code: {
                "requests": len(some),
                "latency_ms": percentiles_ms(answer.seconds for answer in some),
                **({} if code == "OK" else {"example": some[0].detail}),
            }
            for code, some in sorted(codes.items())
        },
    }


@contextlib.asynccontextmanager
async def under_way(*work: Awaitable[None]) -> AsyncIterator[None]:
    """Runs work beside what is inside; an error of it ends all."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def mixed_load(args: argparse.Namespace, world: World, folder: Path) -> dict[str, Any]:
    """Measures the capacity and asks at a part of it."""
    base = folder / "served"
    for name in SWAPPED:
        (base / name).mkdir(parents=True)
    swaps = Swaps(world, base)
    swaps.copy_next()
    batching = "--lenient_batching"
    with (
        search_server(world, folder) as (search_pid, http_target),
        model_server(base, SWAPPED, batching) as (model_pid, grpc_target),
        asyncio.Runner(loop_factory=precise_loop) as runner,
    ):
        memory_use = MemoryUse({"tfde serve": search_pid, "tfde-model-server": model_pid})
        targets = (grpc_target, http_target)
        return {
            **runner.run(_mixed_load(args, world, targets, swaps, memory_use)),
            "swaps": swaps.figures(),
            "memory": memory_use.figures(),
            "index": index_status(http_target),
        }


async def _mixed_load(
    args: argparse.Namespace,
    world: World,
    targets: tuple[str, str],
    swaps: Swaps,
    memory_use: MemoryUse,
) -> dict[str, Any]:
    ask = Asker(world, *targets, args.timeout_s)
    questions = Questions(SHARES, len(world.queries), np.random.default_rng(SEED))
    changes = Changes(world, ask, np.random.default_rng(SEED + 1))
    await closed_loop(ask, questions, args.clients, args.warmup_s)
    async with under_way(
        changes.run(1 / args.changes_per_s, args.compact_s), swaps.run(targets[0], args.swap_s)
    ):
        closed = await closed_loop(ask, questions, args.clients, args.capacity_s)
        capacity = answered_per_s(closed)
        async with under_way(memory_use.run(args.sample_s)):
            answers = await open_loop(ask, questions, args.share * capacity, 60 * args.minutes)
    await ask.close()
    return {
        "capacity": {"answered_per_s": capacity, **figures(closed)},
        "rate_per_s": round(args.share * capacity, 1),
        **figures([answer for some in answers.values() for answer in some]),
        "kinds": {kind: figures(some) for kind, some in sorted(answers.items())},
        "versions_that_answered": len(ask.versions),
        "changes": changes.figures(),
    }


def overload(args: argparse.Namespace, world: World, folder: Path) -> dict[str, Any]:
    """Asks a batched model at several times its capacity."""
    name = "query_encoder"
    base = folder / "overloaded"
    shutil.copytree(world.versions[1] / name, base / name)
    (base / "queue").write_text(QUEUE)
    options = [f"--batching_parameters_file={base / 'queue'}"]
    options += [f"--grpc_max_threads={PLACES}", f"--grpc_max_waiting={WAITING}"]
    with (
        model_server(base, [name], *options) as (_, target),
        asyncio.Runner(loop_factory=precise_loop) as runner,
    ):
        return runner.run(_overload(args, world, target, name))


async def _overload(
    args: argparse.Namespace, world: World, target: str, name: str
) -> dict[str, Any]:
    ask = Asker(world, target, target, args.timeout_s)  # nothing is asked over HTTP
    questions = Questions({name: 1.0}, len(world.queries), np.random.default_rng(SEED))
    # As many clients as the batcher has places: none is refused, and batches are full.
    await closed_loop(ask, questions, PLACES, args.warmup_s)
    closed = await closed_loop(ask, questions, PLACES, args.capacity_s)
    capacity = answered_per_s(closed)
    gc.freeze()  # what was asked before is not looked through again, while requests wait
    answers = (await open_loop(ask, questions, OVERLOAD * capacity, args.overload_s))[name]
    served_per_s = answered_per_s(answers)
    after = await closed_loop(ask, questions, 1, args.after_s)
    await ask.close()
    return {
        "queue": {"text": QUEUE, "places": PLACES, "grpc_max_waiting": WAITING},
        "capacity": {"answered_per_s": capacity, **figures(closed)},
        "rate_per_s": round(OVERLOAD * capacity, 1),
        "served_per_s": served_per_s,
        # All places are served in half of it, as long as refusing takes no time.
        "bound_ms": round(2000 * PLACES / capacity, 1),
        **figures(answers),
        "afterwards": figures(after),
    }


def faults(result: dict[str, Any]) -> list[str]:
    """Returns what must not be, a line each."""
    found = []
    if mixed := result.get("mixed_load"):
        for name in ("capacity", None):
            part = mixed if name is None else mixed[name]
            for what in ("failed", "wrong"):
                if part[what]:
                    found.append(f"mixed load: {part[what]} requests {what}")
        bad = {code: n for code, n in mixed["changes"]["calls"].items() if code != "OK"}
        found += [f"changes: {n} calls: {code}" for code, n in bad.items()]
        found += [f"swaps: {line}" for line in mixed["swaps"]["failed"]]
    if overloaded := result.get("overload"):
        for part in (overloaded, overloaded["afterwards"]):
            if part["wrong"]:
                found.append(f"overload: {part['wrong']} wrong answers")
        if overloaded["afterwards"]["failed"]:
            found.append(f"after the overload: {overloaded['afterwards']['failed']} failed")
        other = overloaded["codes"].keys() - {"OK", *REFUSED, WRONG}
        found += [f"overload: refused with {code}" for code in sorted(other)]
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of the mixed load; 0 leaves it out")
    add("--overload", action="store_true", help="measure the overload too")
    add("--model", help="model directory; by default a tower like MiniLM's with random weights")
    data = os.environ.get("TFDE_DATA", "")
    add("--dataset", default=f"{data}/scifact", help="by default scifact in TFDE_DATA")
    add("--documents", type=int, default=4000, help="three quarters are in the index at the start")
    add("--queries", type=int, default=300, help="that are asked")
    add("--share", type=float, default=0.8, help="of the capacity, asked in the mixed load")
    add("--clients", type=int, default=16, help="that measure the capacity")
    add("--changes_per_s", type=float, default=2.0, help="at most, each of 1 to 4 documents")
    add("--compact_s", type=float, default=60.0, help="seconds between compactions")
    add("--swap_s", type=float, default=20.0, help="seconds between version swaps")
    add("--sample_s", type=float, default=5.0, help="seconds between samples of memory")
    add("--warmup_s", type=float, default=10.0, help="seconds that count for nothing")
    add("--capacity_s", type=float, default=60.0, help="seconds that measure a capacity")
    add("--overload_s", type=float, default=60.0, help="seconds of overload")
    add("--after_s", type=float, default=5.0, help="seconds asked after it")
    add("--timeout_s", type=float, default=10.0, help="after which a request has failed")
    return parser


def main() -> int:
    parser = build_parser()
    args = parser.parse_args()
    if not 8 * K <= args.documents <= MAX_DOCUMENTS:
        parser.error(f"--documents must be in [{8 * K}, {MAX_DOCUMENTS}], where indexes are exact")
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/mixed_load.py", *sys.argv[1:]]),
        "seed": SEED,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared by servers and client",
        "versions": {name: version(name) for name in ("tensorflow", "scann", "grpcio", "numpy")},
        "tfde": tfde.__version__,
    }
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        world = make_world(args, folder)
        result |= {"documents": len(world.documents), "dim": world.query_embeddings.shape[1]}
        if args.minutes:
            result["mixed_load"] = mixed_load(args, world, folder)
        if args.overload:
            result["overload"] = overload(args, world, folder)
    print(json.dumps(result, indent=1))
    found = faults(result)
    for line in found:
        print(f"mixed_load: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
