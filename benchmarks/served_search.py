"""How many questions a second does a served index answer, against FastAPI and faiss?

    python benchmarks/served_search.py [--dataset squad_sent] [--documents 20000]
        [--clients 1 8 64] [--seconds 10] [--pairs 5] [--starts 3] [--folder DIR]

The same model (all-MiniLM-L6-v2), documents and questions on all sides; text in, the ids of the 10
best documents out. Each client asks its next question when the last one is answered.

- `tfde`: `tfde serve` with the whole bundle, asked by gRPC (Predict of a retriever).
- `peer`, `peer_batched`: benchmarks/peer_server.py, without and with its own batching, over HTTP.

Only one side is asked at a time; they take turns, and a ratio is of one turn each. Client and
servers share the machine's cores: `client_cpu_ms` is what the client itself took of an answer's
time. `equal_ids` is the share of the 10 ids that two sides have in common, over the questions that
both answered. `first_answer_s`: from the start of a server's process to its first right answer;
`tfde_alone` is `tfde serve` with `--models` and nothing but the retriever, as the peer.
Prints one JSON object. What was made stays in `--folder`, and a second run takes it from there.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import inputs
import numpy as np
import side_by_side
from search_clients import K, PeerAsk, TfdeAsk

SEED = 0
TARGET_RECALL = 0.95
EXACT_BELOW = 20_000  # documents; `tfde build-index` has nothing to tune there
START_TIMEOUT_S = 600.0
OURS, PEERS = ("tfde",), ("peer", "peer_batched")
PACKAGES = (
    "tfde", "tensorflow", "scann", "grpcio", "sentence-transformers", "torch", "faiss-cpu",
    "fastapi", "uvicorn", "uvloop", "httptools",
)  # fmt: skip

Texts = Sequence[str]


class Side(NamedTuple):
    """Who is asked: its server, and what makes one of search_clients for it."""

    server: str
    connect: Callable


async def turn(side: Side, texts: Texts, clients: int, seconds: float) -> tuple[dict, dict]:
    """Asks one side for so long; returns the figures, and what was found for each text."""
    found: dict[str, list[str]] = {}
    times: list[float] = []
    following = itertools.cycle(texts)

    async def client() -> None:
        while (sent := time.perf_counter()) < end:
            text = next(following)
            found[text] = await ask(text)
            times.append(time.perf_counter() - sent)

    async with contextlib.aclosing(side.connect()) as ask:
        await asyncio.gather(*(ask(text) for text in texts[:clients]))  # connects
        cpu, start = time.process_time(), time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(client() for _ in range(clients)))
        taken = time.perf_counter() - start
        cpu = time.process_time() - cpu
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "queries_per_s": len(times) / taken,
        "p50_ms": 1e3 * p50,
        "p99_ms": 1e3 * p99,
        "client_cpu_ms": 1e3 * cpu / len(times),
    }, found


def take_turns(
    sides: dict[str, Side], texts: Texts, clients: int, args: argparse.Namespace
) -> tuple[dict, dict]:
    """Measures all sides with so many clients; returns the figures and what each side found."""
    found: dict[str, dict] = {name: {} for name in sides}
    turns: dict[str, list[dict]] = {name: [] for name in sides}
    for number in range(-1, args.pairs):
        # Who goes first changes; the round before the first does not count.
        names = list(sides) if number % 2 else list(reversed(sides))
        for name in names:
            seconds = min(2.0, args.seconds) if number < 0 else args.seconds
            figures, answers = asyncio.run(turn(sides[name], texts, clients, seconds))
            found[name] |= answers
            if number >= 0:
                turns[name].append(figures)
    return summary(turns), found


def summary(turns: dict[str, list[dict]]) -> dict:
    """Returns each side's medians, and the ratios of ours to the peers' queries a second."""
    result: dict[str, dict] = {
        name: {
            key: round(statistics.median(figures[key] for figures in rows), 3) for key in rows[0]
        }
        for name, rows in turns.items()
    }
    for ours, theirs in itertools.product(OURS, PEERS):
        if ours in turns and theirs in turns:
            rates = zip(turns[ours], turns[theirs], strict=True)
            ratios = sorted(a["queries_per_s"] / b["queries_per_s"] for a, b in rates)
            result[f"{ours} against {theirs}"] = {
                "ratio": round(statistics.median(ratios), 3),
                "ratio_lowest": round(ratios[0], 3),
                "ratio_highest": round(ratios[-1], 3),
                "pairs": len(ratios),
            }
    return result


def equal_ids(found: dict[str, dict[str, list[str]]]) -> dict[str, float]:
    """Returns the share of ids that two sides have in common, for each two."""
    shares = {}
    for one, other in itertools.combinations(found, 2):
        both = found[one].keys() & found[other].keys()
        common = sum(len(set(found[one][text]) & set(found[other][text])) for text in both)
        wanted = sum(max(len(found[one][text]), len(found[other][text])) for text in both)
        shares[f"{one}, {other}"] = round(common / max(wanted, 1), 4)
    return shares


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen]:
    """A process with this command, ended with the block."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
    # On stdout stands our result alone.
    with subprocess.Popen(command, stdout=sys.stderr, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for_answer(
    process: subprocess.Popen, side: Side, text: str, doc_id: str | None = None
) -> float:
    """Waits until a server answers, with that document as the best if one is named.

    Returns:
        Seconds from the call.
    """

    async def ask_once() -> list[str]:
        async with contextlib.aclosing(side.connect()) as ask:
            return await ask(text)

    start = time.perf_counter()
    while (taken := time.perf_counter() - start) < START_TIMEOUT_S:
        if process.poll() is not None:
            raise RuntimeError(f"{side.server} ended with {process.returncode} at its start")
        with contextlib.suppress(OSError, grpc.RpcError):
            found = asyncio.run(ask_once())
            if doc_id in (None, found[0]):
                return time.perf_counter() - start
            raise RuntimeError(f"{side.server} found {found[0]!r} first, earlier {doc_id!r}")
        time.sleep(0.05)
    raise RuntimeError(f"{side.server} gave no answer in {taken:.0f} s")


def first_answers(
    commands: dict[str, list[str]], sides: dict[str, Side], text: str, found: dict, starts: int
) -> dict:
    """Starts each server so often, in turns; returns seconds to the first right answer."""
    times: dict[str, list[float]] = {server: [] for server in commands}
    of_server = {side.server: name for name, side in reversed(sides.items())}
    for _ in range(starts):
        for server, command in commands.items():
            name = of_server[server.removesuffix("_alone")]
            with running(command) as process:
                taken = wait_for_answer(process, sides[name], text, found[name][text][0])
            times[server].append(taken)
    return {
        server: {
            "median_s": round(statistics.median(seconds), 2),
            "lowest_s": round(min(seconds), 2),
            "highest_s": round(max(seconds), 2),
            "starts": starts,
        }
        for server, seconds in times.items()
    }


def prepare(folder: Path, args: argparse.Namespace, model: str) -> dict:
    """Makes dataset, bundle and the peer's index in a folder, or takes what it has of them.

    Returns:
        The ids of the documents in their order, and the questions.
    """
    about = {"model": model, "dataset": args.dataset, "documents": args.documents}
    made, data = folder / "about.json", folder / "dataset"
    if made.exists() and json.loads(made.read_text()) != about:
        raise SystemExit(f"{folder}: was made with other arguments: {made.read_text()}")
    data.mkdir(parents=True, exist_ok=True)
    made.write_text(json.dumps(about))
    corpus = data / "corpus.jsonl"
    documents, queries, _ = inputs.read_dataset(args.dataset, args.documents)
    rows = [{"_id": key, "title": "", "text": text.strip()} for key, text in documents.items()]
    questions = [{"_id": key, "text": text} for key, text in queries.items()]
    for file, records in ((corpus, rows), (data / "queries.jsonl", questions)):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    bundle, more = bundle_of(args), []
    if args.retriever == "retriever_partitioned":
        more = ["--target_recall", TARGET_RECALL]
    if args.format != "savedmodel":
        more += ["--format", args.format]
    places = {name: folder / name for name in ("embeddings", "index", bundle, "peer")}
    tfde = [sys.executable, "-m", "tfde.cli.main"]
    measured = ["--target_recall", str(TARGET_RECALL), "--dataset", data, "--model", model]
    peer = [side_by_side.peers_python(), Path(__file__).with_name("peer_server.py")]
    steps = {
        "embeddings": [*tfde, "encode", "--model", model, "--dataset", data],
        "index": [
            *tfde, "build-index", "--embeddings", places["embeddings"],
            *(measured if len(rows) >= EXACT_BELOW else []),
        ],
        bundle: [*tfde, "export", "--model", model, "--index", places["index"],
                 "--dataset", data, *more],
        "peer": [*peer, "build", "--model", model, "--corpus", corpus],
    }  # fmt: skip
    for name, step in steps.items():
        done = folder / f"{name}.done"
        if not done.exists():
            output = "--folder" if name == "peer" else "--output"
            with running([*map(str, step), output, str(places[name])]) as process:
                if process.wait():
                    raise SystemExit(f"served_search: {name} was not made; the reason stands above")
            done.touch()
    return {"doc_ids": list(documents), "texts": list(dict.fromkeys(queries.values()))}


def bundle_of(args: argparse.Namespace) -> str:
    """Returns the name of the bundle that is asked; leaves take memory and time to make."""
    parts = ["bundle", *(["partitioned"] if args.retriever == "retriever_partitioned" else [])]
    return "_".join(parts + ([args.format] if args.format != "savedmodel" else []))


def server_commands(
    folder: Path, args: argparse.Namespace, model: str, ports: dict[str, int]
) -> dict[str, list[str]]:
    """Returns the command of each server."""
    ours = [sys.executable, "-m", "tfde.cli.main", "serve", str(folder / bundle_of(args))]
    ours += ["--port", str(ports["tfde"]), "--rest_api_port", "0", "--http_port", "0"]
    script = str(Path(__file__).with_name("peer_server.py"))
    peer = [str(side_by_side.peers_python()), script, "serve", "--model", model]
    peer += ["--folder", str(folder / "peer")]
    if args.torch_threads:
        peer += ["--torch-threads", str(args.torch_threads)]
    return {
        "tfde": [*ours, "--retriever", args.retriever],
        "tfde_alone": [*ours, "--retriever", args.retriever, "--models", args.retriever],
        "peer": [*peer, "--port", str(ports["peer"])],
        "peer_batched": [*peer, "--port", str(ports["peer_batched"]), "--batching"],
    }


def measure(folder: Path, args: argparse.Namespace) -> dict:
    """Returns what was measured."""
    model = inputs.model_directory(args.model)
    made = prepare(folder, args, model)
    texts = made["texts"]
    random.Random(SEED).shuffle(texts)
    ports = free_ports("tfde", *PEERS)
    port, retriever = ports["tfde"], args.retriever
    every = {
        "tfde": Side("tfde", lambda: TfdeAsk(port, retriever)),
        "peer": Side("peer", lambda: PeerAsk(ports["peer"])),
        "peer_batched": Side("peer_batched", lambda: PeerAsk(ports["peer_batched"])),
    }
    sides = {name: every[name] for name in args.sides}
    every_command = server_commands(folder, args, model, ports)
    commands = {side.server: every_command[side.server] for side in sides.values()}
    result: dict[str, dict] = {}
    found: dict[str, dict] = {name: {} for name in sides}
    with contextlib.ExitStack() as stack:
        processes = {n: stack.enter_context(running(c)) for n, c in commands.items()}
        for side in sides.values():
            wait_for_answer(processes[side.server], side, texts[0])
        for clients in args.clients:
            figures, answers = take_turns(sides, texts, clients, args)
            result[f"{clients} clients"] = figures
            for name in sides:
                found[name] |= answers[name]
    if args.starts:
        if "tfde" in commands:
            commands["tfde_alone"] = every_command["tfde_alone"]
        result["first_answer_s"] = first_answers(commands, sides, texts[0], found, args.starts)
    result["equal_ids"] = equal_ids(found)
    about = {"documents": len(made["doc_ids"]), "queries": len(texts), "retriever": args.retriever}
    return {**about, **result}


def free_ports(*names: str) -> dict[str, int]:
    """Returns a port for each name."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = [server.getsockname()[1] for server in servers]
    return dict(zip(names, ports, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default=inputs.MINILM, help="sentence-transformers directory")
    add("--dataset", default="squad_sent", help="of TFDE_DATA, or a directory; its test queries")
    add("--documents", type=int, default=20_000, help="at most; those that are judged first")
    retrievers = ["retriever", "retriever_partitioned", "retriever_scann"]
    add("--retriever", choices=retrievers, default="retriever_scann", help="of the bundle")
    add(
        "--format",
        choices=["savedmodel", "openvino", "onnx"],
        default="savedmodel",
        help="another engine's towers in the bundle, of which the server takes the faster",
    )
    add("--sides", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    add("--clients", type=int, nargs="+", default=[1, 8, 64])
    add("--seconds", type=float, default=10.0, help="of a turn")
    add("--pairs", type=int, default=5, help="turns of each side that count")
    add("--starts", type=int, default=3, help="of each server, for its first answer; 0 for none")
    add("--torch-threads", type=int, help="of the peer within one encode; torch's own choice")
    add("--folder", type=Path, help="where what is made stays; by default a temporary one")
    add("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    for name, least in (("documents", K), ("seconds", 0.1), ("pairs", 1), ("starts", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}. Received: {getattr(args, name)}")
    if min(args.clients) < 1:
        parser.error(f"--clients must be at least 1. Received: {min(args.clients)}")
    if Path(args.dataset).is_dir():
        args.dataset = str(Path(args.dataset).resolve())
    with contextlib.ExitStack() as stack:
        folder = args.folder or stack.enter_context(tempfile.TemporaryDirectory())
        result = measure(Path(folder), args)
    side_by_side.finish(result, PACKAGES, args.output)


if __name__ == "__main__":
    main()
