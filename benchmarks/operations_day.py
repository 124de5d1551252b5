"""Does anything fail or lie on a day on which all that is served is changed under load?

    python benchmarks/operations_day.py [--seconds 420] [--model DIR] [--dataset DIR]

Two servers share the machine with who asks them.
- One serves a bundle. Versions come and go by `tfde bundle install` and `rollback`. It is asked
  over HTTP, and by `tfde.Client` over gRPC.
- One serves a live index. Documents are added, replaced and deleted over HTTP, and compactions run.
  It is searched, and asked for embeddings.
- Either is killed by SIGKILL and started again.
- The live index is backed up, compacted, exported and installed as a version of the bundle.
- Commands run with the lowest priority (`nice`), as beside a server they should.

First the capacity: clients that each wait for an answer, while documents change. Then questions
at 80 % of it, at random times (Poisson) whether or not earlier ones are answered, with all of the
above under way. Latencies count from when a question was due.

Every answer is checked (`day_check.py`): titles, texts, snippets, scores and that none of the best
ten is missing, against one state which was true at a moment between question and answer. In each
version every id stands for another text, so no answer can be of two. What was acknowledged before a
kill must be there after it.

Requests that fail while their server is down are counted apart: from the kill to its `ready`, and
0.3 s, for as long a client waits before it tries to connect again.
Prints a table, and what went wrong; the exit code is 1 if a request or a command failed, or an
answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from day_check import ABSENT
from day_load import DOWN, OK, WRONG, Answer, Asker, Changes
from day_world import KEY, SEED, Server, World, index_status
from training_memory import memory

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from load_client import precise_loop
from load_test import percentiles_ms

import tfde
from tfde.retrieval.live.live_index import LiveIndex

MAX_DOCUMENTS = 19_999  # below this an index of default parameters is exact
WHOLE = 1000  # the most that may be asked for, after a kill
SHOWN = 20  # lines of what went wrong
OPERATIONS = (
    *("install", "install", "rollback", "install", "rollback", "kill_index"),
    *("install", "install", "install_index", "kill_bundle", "install"),
    *("install", "install", "kill_index", "install"),
)


class Event(NamedTuple):
    """Something that was done: of a kind, from when to when; "" or what went wrong."""

    kind: str
    since: float
    until: float
    fault: str


class CommandError(Exception):
    """A command of `tfde` failed, or said what it should not."""


class Day:
    """What is done while both servers are asked.

    Args:
        world: What is served.
        operations: Names of methods, in order.
        timeout_s: Seconds after which a request has failed.
    """

    def __init__(self, world: World, operations: Sequence[str], timeout_s: float) -> None:
        self.world, self.operations = world, operations
        self.events: list[Event] = []
        self.answers: list[Answer] = []
        self.mebibytes: list[tuple[float, ...]] = []
        self._bundle_directory = world.export(1)
        installs = (name for name in operations if name.startswith("install"))
        self._ready = iter(
            [
                (number, world.export(number) if name == "install" else world.folder / "exported")
                for number, name in enumerate(installs, start=2)
            ]
        )
        beside = shutil.copytree(self._bundle_directory, world.folder / "beside")
        options = ["--models", "retriever", "documents"]
        self.bundle = Server("bundle", world.folder, self._bundle_directory, *options)
        options = ["--index", str(world.index), "--admin_key_file", str(world.folder / "key")]
        self.index = Server("index", world.folder, beside, *options)
        self.asker = Asker(world, self.bundle, self.index, timeout_s)
        self._changes = Changes(world, self.asker)
        self._live = [1]  # the versions that a rollback goes back to, the live one last

    async def operate(self, seconds: float) -> None:
        """Does all operations, the next when the one before is done and a part of the time over."""
        start = time.monotonic()
        for number, name in enumerate(self.operations, start=1):
            due = start + seconds * number / (len(self.operations) + 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await getattr(self, f"_{name}")()
        await asyncio.sleep(max(0.0, start + seconds - time.monotonic()))

    async def change(self, per_s: float, rng: np.random.Generator, over: asyncio.Event) -> None:
        """Changes the index until all is over."""
        while not await is_set(over, rng.exponential(1 / per_s)):
            start = time.monotonic()
            kind, code, detail = await self._changes.make()
            told = f"documents {kind.removesuffix('e')}ed"
            self._note(told, start, "" if code in (OK, DOWN) else f"{code}: {detail}")

    async def compact(self, every_s: float, over: asyncio.Event) -> None:
        """Compacts the index until all is over."""
        while not await is_set(over, every_s):
            await self.index.up.wait()
            start = time.monotonic()
            code, detail, _ = await self.asker.admin.answer("/v1/index/compact", {}, key=KEY)
            try:
                while code == OK and self.index.up.is_set():
                    status = await asyncio.to_thread(index_status, self.index.http)
                    if not status["compacting"]:
                        detail = status["compaction_error"]
                        break
                    await asyncio.sleep(0.1)
            except OSError as error:
                detail = str(error)
            now = time.monotonic()
            down = self.index.was_down(start, now)
            self._note("compaction", start, "" if down or code == "HTTP 409" else detail)

    async def watch(self, every_s: float, over: asyncio.Event) -> None:
        """Samples the memory of both servers until all is over."""
        while not await is_set(over, every_s):
            use = (memory(server.pid, "VmRSS") / 2**20 for server in (self.bundle, self.index))
            self.mebibytes.append(tuple(use))

    async def ask_at(self, rate: float, rng: np.random.Generator, over: asyncio.Event) -> None:
        """Asks at random times until all is over, and waits for the answers."""
        due = time.monotonic()

        async def one(due: float) -> None:
            self.answers.append(await self.asker.ask(due))

        async with asyncio.TaskGroup() as tasks:
            while not over.is_set():
                due += rng.exponential(1 / rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.create_task(one(due))

    async def capacity(self, clients: int, seconds: float) -> float:
        """Returns answers a second to clients that each wait for theirs."""
        start, found = time.monotonic(), []

        async def client() -> None:
            while time.monotonic() - start < seconds:
                found.append(await self.asker.ask())

        await asyncio.gather(*(client() for _ in range(clients)))
        self.answers += [answer for answer in found if answer.code != OK]
        return sum(answer.code == OK for answer in found) / (time.monotonic() - start)

    async def stop(self) -> None:
        """Ends both servers and closes the connections."""
        self.asker.close()
        for server in (self.bundle, self.index):
            start = time.monotonic()
            if fault := await server.stop():
                self._note(f"end of the {server.name}'s server", start, fault)

    def end(self) -> None:
        """Compares the whole index on the disk with all that was acknowledged."""
        start, state, faults = time.monotonic(), self.asker.history.state, []
        with LiveIndex.open(self.world.index) as index:
            expected = {d.doc_id: d for d in self.world.documents_of(state)}
            if set(index.doc_ids.tolist()) != expected.keys():
                faults.append("the index on the disk has other ids than were acknowledged")
            changed = index.documents(expected)
            faults += [
                f"{doc_id} has another text on the disk"
                for doc_id, document in changed.items()
                if document[:3] != expected[doc_id][:3]
            ]
        self._note("index compared on the disk", start, "; ".join(faults[:3]))

    async def _install(self) -> None:
        async with self._event("install"):
            await self._make_live(*next(self._ready))

    async def _install_index(self) -> None:
        async with self._event("index exported and installed"):
            number, output = next(self._ready)
            copy = self.world.folder / f"copy-{number}"
            await self._command("index", "backup", self.world.index, "--output", copy)
            await self._command("index", "compact", copy)
            status = json.loads(await self._command("index", "status", copy, "--json"))
            self.asker.versions.states[number] = self.asker.history.states[status["sequence"]]
            await self._command(
                "export", "--model", self.world.model, "--index", copy, "--output", output,
                "--dataset", self.world.data, "--version", number, "--scann", "false",
            )  # fmt: skip
            await self._make_live(number, output)

    async def _make_live(self, number: int, new: Path) -> None:
        states = self.asker.versions.states
        states.setdefault(number, self.world.state_of(number))
        self.asker.versions.begins(number, time.monotonic())
        await self._bundle_command("install", number, new, self._bundle_directory)
        shutil.rmtree(new)
        self._live.append(number)

    async def _rollback(self) -> None:
        async with self._event("rollback"):
            self._live.pop()
            self.asker.versions.begins(self._live[-1], time.monotonic())
            await self._bundle_command("rollback", self._live[-1], self._bundle_directory)

    async def _bundle_command(self, action: str, number: int, *arguments: object) -> None:
        told = await self._command("bundle", action, *arguments, "--target", self.bundle.grpc)
        self.asker.versions.alone(number, time.monotonic())
        if f"answers with version {number}," not in told:
            raise CommandError(f"tfde bundle {action} does not say version {number}: {told}")

    async def _kill_bundle(self) -> None:
        async with self._event("kill of the bundle's server"):
            await self.bundle.kill()
            await self.bundle.start()

    async def _kill_index(self) -> None:
        async with self._event("kill of the index's server"):
            await self.asker.admin.answer("/v1/index/compact", {}, key=KEY)  # is under way then
            await asyncio.sleep(0.2)
            await self.index.kill()
            await self.index.start()
            code, detail = await self.asker.search_index(0, WHOLE)
            status = await asyncio.to_thread(index_status, self.index.http)
            state = self.asker.history.states.get(status["sequence"])
            there = None if state is None else int((state != ABSENT).sum())
            if code != OK:
                raise CommandError(f"after the kill: {code}: {detail}")
            if status["documents"] != there:
                raise CommandError(f"after the kill: {status['documents']} documents, not {there}")

    async def _command(self, *arguments: object) -> str:
        """Runs `tfde` with the lowest priority; returns what it printed."""
        process = await asyncio.create_subprocess_exec(
            "nice", "-n", "19", sys.executable, "-m", "tfde.cli.main", *map(str, arguments),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = (text.decode() for text in await process.communicate())
        if process.returncode:
            raise CommandError(f"tfde {' '.join(map(str, arguments))}: {errors.strip()[-500:]}")
        return output

    @contextlib.asynccontextmanager
    async def _event(self, kind: str) -> AsyncIterator[None]:
        start, fault = time.monotonic(), ""
        try:
            yield
        except CommandError as error:
            fault = str(error)
        self._note(kind, start, fault)
        print(f"operations_day: {kind}, {time.monotonic() - start:.1f} s", file=sys.stderr)

    def _note(self, kind: str, since: float, fault: str) -> None:
        self.events.append(Event(kind, since, time.monotonic(), fault))


async def is_set(event: asyncio.Event, within_s: float) -> bool:
    """Waits for an event, so long at most; returns whether it came."""
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(event.wait(), within_s)
    return False


def row(name: str, events: Sequence[Event], answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns what is told of a kind of event and of the questions asked meanwhile."""
    codes = Counter(answer.code for answer in answers)
    wrong, down = codes.pop(WRONG, 0), codes.pop(DOWN, 0)
    good = percentiles_ms(a.now - a.due for a in answers if a.code == OK)
    seconds = sorted(event.until - event.since for event in events)
    return {
        "event": name,
        "times": len(events),
        "seconds": [round(seconds[len(seconds) // 2], 2), round(seconds[-1], 2)] if events else [],
        "requests": len(answers),
        "p50_ms": good.get("p50"),
        "p99_ms": good.get("p99"),
        "server_down": down,
        "failed": codes.total() - codes[OK] + sum(bool(event.fault) for event in events),
        "wrong": wrong,
    }


def rows(events: Sequence[Event], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Returns a row a kind of event, one of what was asked beside them, one of everything."""
    due, now = (np.array([answer[n] for answer in answers], float) for n in (1, 2))
    beside, found = np.ones(len(answers), bool), []
    for kind in dict.fromkeys(event.kind for event in events):
        some = [event for event in events if event.kind == kind]
        during = np.zeros(len(answers), bool)
        for event in some:
            during |= (due <= event.until) & (now >= event.since)
        beside &= ~during
        found.append(row(kind, some, [answers[n] for n in np.flatnonzero(during)]))
    found.append(row("none of these", [], [answers[n] for n in np.flatnonzero(beside)]))
    return [*found, row("all", events, answers)]


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as Markdown."""
    names = ["times", "s, median and most", "requests meanwhile", "p50 ms", "p99 ms"]
    lines = [["", *names, "server down", "failed", "wrong"]]
    for each in found:
        seconds = " / ".join(f"{value:.1f}" for value in each["seconds"])
        times = ("" if each[name] is None else f"{each[name]:.0f}" for name in ("p50_ms", "p99_ms"))
        counts = (f"{each[name]:,}" for name in ("server_down", "failed", "wrong"))
        shown = "" if each["event"] == "all" else seconds
        lines.append(
            [each["event"], f"{each['times']:,}", shown, f"{each['requests']:,}", *times, *counts]
        )
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def thirds(samples: Sequence[tuple[float, ...]]) -> dict[str, list[int]]:
    """Returns the mean MiB of both servers in the first and the last third of the time."""
    if not samples:
        return {}
    third = max(1, len(samples) // 3)
    values = np.array(samples)
    means = zip(values[:third].mean(axis=0), values[-third:].mean(axis=0), strict=True)
    return {
        name: [round(float(value)) for value in pair]
        for name, pair in zip(("bundle", "index"), means, strict=True)
    }


async def spend(day: Day, args: argparse.Namespace) -> dict[str, Any]:
    """Lives the day; returns the capacity, the rate that was asked at, and its seconds."""
    rng = np.random.default_rng(SEED)
    await asyncio.gather(day.bundle.start(), day.index.start())
    await day.capacity(args.clients, args.warmup_s)
    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(day.change(args.changes_per_s, rng, over))
        capacity = await day.capacity(args.clients, args.capacity_s)
        start = time.monotonic()
        tasks.create_task(day.compact(args.compact_s, over))
        tasks.create_task(day.watch(args.sample_s, over))
        tasks.create_task(day.ask_at(args.share * capacity, rng, over))
        await day.operate(args.seconds)
        over.set()
    return {
        "capacity_per_s": round(capacity, 1),
        "rate_per_s": round(args.share * capacity, 1),
        "seconds": round(time.monotonic() - start),
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=420.0, help="at least; it ends when all is done")
    add("--model", default="", help="model directory; a tower like MiniLM's with random weights")
    data = os.environ.get("TFDE_DATA", "")
    add("--dataset", default=f"{data}/scifact", help="by default scifact in TFDE_DATA")
    add("--documents", type=int, default=2000, help="texts; three quarters are served at once")
    add("--queries", type=int, default=300, help="of the dataset, beside the documents' beginnings")
    add(
        "--operations",
        nargs="+",
        default=OPERATIONS,
        choices=sorted(set(OPERATIONS)),
        help="what is done, in order",
    )
    add("--share", type=float, default=0.8, help="of the capacity, that is asked")
    add("--clients", type=int, default=16, help="that measure the capacity")
    add("--changes_per_s", type=float, default=2.0, help="at most, each of 1 to 4 documents")
    add("--compact_s", type=float, default=45.0, help="seconds between compactions")
    add("--sample_s", type=float, default=5.0, help="seconds between samples of memory")
    add("--warmup_s", type=float, default=10.0, help="seconds that count for nothing")
    add("--capacity_s", type=float, default=30.0, help="seconds that measure the capacity")
    add("--timeout_s", type=float, default=30.0, help="after which a request has failed")
    add("--output", help="JSON file of the figures")
    return parser


def main() -> int:
    parser = build_parser()
    args = parser.parse_args()
    if not 40 <= args.documents <= MAX_DOCUMENTS:
        parser.error(f"--documents must be in [40, {MAX_DOCUMENTS}], where indexes are exact")
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/operations_day.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared by servers and client",
        "versions": {name: version(name) for name in ("tensorflow", "scann", "grpcio", "numpy")},
        "tfde": tfde.__version__,
    }
    with tempfile.TemporaryDirectory() as directory:
        world = World(
            args.dataset, Path(directory),
            documents=args.documents, queries=args.queries, model=args.model,
        )  # fmt: skip
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            day = Day(world, args.operations, args.timeout_s)
            try:
                result |= runner.run(spend(day, args))
            finally:
                runner.run(day.stop())
        day.end()
    result |= {"mebibytes": thirds(day.mebibytes), "rows": rows(day.events, day.answers)}
    faults = [f"{event.kind}: {event.fault}" for event in day.events if event.fault]
    faults += [f"{a.kind}: {a.code}: {a.detail}" for a in day.answers if a.code not in (OK, DOWN)]
    result["faults"] = faults
    if args.output:
        Path(args.output).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(f"{result['command']}\n{result['machine']}")
    rate = f"{result['rate_per_s']:g} of {result['capacity_per_s']:g} requests a second"
    print(f"{result['seconds']} s at {rate}")
    for name, (first, last) in result["mebibytes"].items():
        print(f"memory of the {name}'s server, first and last third: {first:,} and {last:,} MiB")
    print(f"\n{table(result['rows'])}")
    for line in faults[:SHOWN]:
        print(f"operations_day: {line}", file=sys.stderr)
    if len(faults) > SHOWN:
        print(f"operations_day: and {len(faults) - SHOWN} more", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
