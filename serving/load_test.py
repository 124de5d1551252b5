"""Asks a server at a given rate and says how long the answers took.

    python serving/load_test.py --queries data/squad/queries.jsonl.gz --rate 50 100 200

Open loop: questions arrive at random times (a Poisson process) whether or not earlier ones are
answered, as they do from many users. The time of an answer counts from the moment its question was
due, so that neither a slow server nor a slow client hides a wait (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from load_client import Answer, Load, ask_once, remember, run_client

from tfde.cli.main import run_command
from tfde.cli.parser import CommandParser
from tfde.errors import DataError, ServerError, require
from tfde.storage.files import write_json
from tfde.storage.json_lines import read_json_lines, string_field
from tfde.version import __version__

LATE_S = 0.010  # a question sent this long after it was due is the client's fault
MAX_LATE_SHARE = 0.01
MAX_RATE = 1e6
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
DESCRIPTION = """
Asks a server at given rates and prints how long the answers took. Questions arrive at random times
(Poisson) whether or not earlier ones are answered, and a time counts from when the question was
due. "late" counts questions that this client sent more than 10 ms after they were due: above 1 %
the figures are the client's, so give it more --processes or a machine of its own. Percentiles are
of answers without error; failures are listed by code. A p99.9 wants 10,000 requests. Exit code: 0,
1 where a bound is broken or nothing was answered, 2 for a wrong command line.
"""


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float]:
    """Returns milliseconds by name; the p-th is the smallest time that p % do not exceed."""
    values = np.sort(np.fromiter(seconds, float))
    if not len(values):
        return {}
    # Rounded, for 99.9 is no binary number and could ask for the next rank.
    ranks = {n: int(np.ceil(round(len(values) * p / 100, 6))) for n, p in PERCENTILES.items()}
    return {name: round(1000 * float(values[max(rank, 1) - 1]), 3) for name, rank in ranks.items()}


def summary(rate: float, duration_s: float, answers: list[Answer]) -> dict[str, Any]:
    """Returns the figures of one rate."""
    codes: dict[str, list[Answer]] = {}
    for answer in answers:
        codes.setdefault(answer.code, []).append(answer)
    good = codes.get("OK", [])
    until_s = max([duration_s, *(answer.answered_at_s for answer in good)])
    late = [answer.late_s for answer in answers]
    return {
        "rate": rate,
        "requests": len(answers),
        "answered_per_s": round(len(good) / until_s, 2),
        "latency_ms": percentiles_ms(answer.seconds for answer in good),
        "codes": {
            code: {
                "requests": len(some),
                "latency_ms": percentiles_ms(answer.seconds for answer in some),
                "example": some[0].detail,
            }
            for code, some in sorted(codes.items())
        },
        "late_starts": sum(late_s > LATE_S for late_s in late),
        "lateness_ms": percentiles_ms(late),
    }


def read_texts(path: str) -> list[str]:
    """Returns the texts of a file of queries.

    Raises:
        DataError: a line is not a query, or there is none.
    """
    texts = [string_field(path, n, record, "text") for n, record in read_json_lines(path)]
    if not texts:
        raise DataError(path, None, "must hold at least one query.")
    return texts


HEADER = (
    f"{'rate/s':>8} {'answered/s':>10} {'requests':>8} {'failed':>7} {'p50 ms':>8} {'p90 ms':>8}"
    f" {'p99 ms':>8} {'p99.9 ms':>9} {'max ms':>8} {'late':>6}"
)


def row(result: dict[str, Any]) -> str:
    """Returns a line of the table, and one for each code of failures."""
    failures = {code: some for code, some in result["codes"].items() if code != "OK"}
    failed = sum(some["requests"] for some in failures.values())
    times = [f"{result['latency_ms'].get(name, float('nan')):.1f}" for name in PERCENTILES]
    lines = [
        f"{result['rate']:>8g} {result['answered_per_s']:>10.1f} {result['requests']:>8}"
        f" {failed:>7} {times[0]:>8} {times[1]:>8} {times[2]:>8} {times[3]:>9} {times[4]:>8}"
        f" {result['late_starts']:>6}"
    ]
    for code, some in failures.items():
        p50, p99 = (some["latency_ms"][name] for name in ("p50", "p99"))
        counted = f"  {code}: {some['requests']}, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        lines.append(f"{counted}: {some['example']}")
    return "\n".join(lines)


def faults(result: dict[str, Any], max_p99_ms: float | None, max_failed: float | None) -> list[str]:
    """Returns what a result breaks, a line each."""
    good = result["codes"].get("OK", {"requests": 0})["requests"]
    failed = result["requests"] - good
    found = []
    if not good:
        found.append("no request was answered")
    elif max_p99_ms is not None and result["latency_ms"]["p99"] > max_p99_ms:
        found.append(f"p99 is {result['latency_ms']['p99']:g} ms, allowed are {max_p99_ms:g}")
    if max_failed is not None and failed > max_failed * result["requests"]:
        found.append(f"{failed} of {result['requests']} failed, allowed is a share {max_failed:g}")
    return [f"at {result['rate']:g}/s: {fault}" for fault in found]


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = CommandParser(prog="load_test.py", description=DESCRIPTION)
    add = parser.add_argument
    add("--queries", required=True, help='JSON Lines {"_id", "text"}, perhaps packed')
    add("--rate", type=float, nargs="+", required=True, help="questions a second; one row each")
    add(
        "--target", default="", help="HOST:PORT; localhost:8500 (gRPC) or :8501 (REST) unless given"
    )
    add("--protocol", choices=["grpc", "rest"], default="grpc", help="how to ask")
    add("--model", default="retriever", help="the retriever")
    add("-k", type=int, default=10, help="documents a question")
    add("--warmup_s", type=float, default=5.0, help="seconds at the same rate that do not count")
    add("--duration_s", type=float, default=30.0, help="seconds that count, for each rate")
    add("--timeout_s", type=float, default=10.0, help="after which a question counts as failed")
    add("--processes", type=int, default=1, help="clients; more where `late` grows")
    add("--seed", type=int, default=0, help="of arrivals and texts")
    add("--max_p99_ms", type=float, help="bound of p99: exit code 1 above it")
    add("--max_failed", type=float, help="bound of failures, a share of 1: exit code 1 above it")
    add("--output", help="JSON file of the figures")
    return parser


def run(args: Any) -> int:
    """Runs the rates one after the other and prints a row each."""
    for name in ("duration_s", "timeout_s"):
        require(getattr(args, name) > 0, name, "above 0", getattr(args, name))
    require(all(0 < rate <= MAX_RATE for rate in args.rate), "rate", "in (0, 1e6]", args.rate)
    require(args.warmup_s >= 0, "warmup_s", "at least 0", args.warmup_s)
    require(args.k >= 1, "k", "at least 1", args.k)
    require(args.processes >= 1, "processes", "at least 1", args.processes)
    target = args.target or ("localhost:8500" if args.protocol == "grpc" else "localhost:8501")
    require(target.rpartition(":")[2].isdecimal(), "target", "HOST:PORT", target)
    load = Load(
        protocol=args.protocol,
        target=target,
        model=args.model,
        k=args.k,
        timeout_s=args.timeout_s,
        texts=read_texts(args.queries),
        rate=min(args.rate) / args.processes,
        warmup_s=args.warmup_s,
        duration_s=args.duration_s,
        seed=(args.seed,),
    )
    code, detail = asyncio.run(ask_once(load))
    if code != "OK":
        raise ServerError(f"{target} refuses a first question to {args.model!r}: {code}: {detail}")
    results = []
    print(HEADER, flush=True)
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with ProcessPoolExecutor(
        args.processes,
        mp_context=spawn,
        initializer=remember,
        initargs=(spawn.Barrier(args.processes),),
    ) as pool:
        for number, rate in enumerate(args.rate):
            share = dataclasses.replace(load, rate=rate / args.processes)
            loads = [
                dataclasses.replace(share, seed=(args.seed, number, process))
                for process in range(args.processes)
            ]
            answers = [answer for part in pool.map(run_client, loads) for answer in part]
            results.append(summary(rate, args.duration_s, answers))
            print(row(results[-1]), flush=True)
    if args.output:
        options = {key: value for key, value in vars(args).items() if key != "output"}
        options |= {"target": target, "texts": len(load.texts), "tfde": __version__}
        machine = {"cores": os.cpu_count(), "kind": platform.machine()}
        write_json(Path(args.output), {**options, "client": machine, "results": results})
    broken = [fault for r in results for fault in faults(r, args.max_p99_ms, args.max_failed)]
    late = [
        f"at {r['rate']:g}/s: the client itself was late ({r['late_starts']} of {r['requests']}"
        " questions); give it more --processes or a machine of its own"
        for r in results
        if r["late_starts"] > MAX_LATE_SHARE * r["requests"]
    ]
    for line in [*late, *broken]:
        print(f"load_test: {line}", file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    """Reads the command line and runs; an expected error is one line on stderr."""
    return run_command("load_test", run, build_parser().parse_args())


if __name__ == "__main__":
    sys.exit(main())
