"""What do changes cost an index, and what does it cost to make them while it is searched?

    python benchmarks/live_index.py [--vectors 100000] [--dim 128] [--directory D]

Clustered unit vectors, a ScaNN index with default parameters in a directory on the disk; searches
of the 10 best, one query a call, in the one process that also makes the changes. Prints one JSON
object.
"""

import argparse
import json
import os
import platform
import sqlite3
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from clustered_vectors import clustered

from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document

K = 10
TEXT = "word " * 100
ADDED = (1_000, 5_000, 20_000)
TRANSACTIONS = ((1, 50), (64, 20), (2_048, 4))  # documents in one, how many of them
CALLS = 200


def milliseconds(calls: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(calls, [50, 99]) * 1e3
    return {"p50": round(p50, 3), "p99": round(p99, 3), "max": round(max(calls) * 1e3, 1)}


def search_one_by_one(index: LiveIndex, queries: np.ndarray, calls: int) -> list[float]:
    seconds = []
    for number in range(calls):
        query = queries[number % len(queries)][np.newaxis]
        start = time.perf_counter()
        index.search(query, K)
        seconds.append(time.perf_counter() - start)
    return seconds


class Changes:
    """Makes new documents near the old ones, or deletes old ones, and keeps the time."""

    def __init__(self, index: LiveIndex, spare: np.ndarray) -> None:
        self.index, self.spare, self.next = index, spare, 0

    def add(self, count: int) -> float:
        rows = range(self.next, self.next + count)
        self.next += count
        documents = [Document(f"n{row}", "", TEXT) for row in rows]
        start = time.perf_counter()
        self.index.add(documents, self.spare[rows.start : rows.stop], fingerprint="")
        return time.perf_counter() - start


def during_a_compaction(index: LiveIndex, queries: np.ndarray) -> dict[str, object]:
    took: list[float] = []

    def compact() -> None:
        start = time.perf_counter()
        index.compact()
        took.append(time.perf_counter() - start)

    thread = threading.Thread(target=compact)
    thread.start()
    calls: list[float] = []
    while thread.is_alive():
        calls += search_one_by_one(index, queries, 1)
    thread.join()
    return {"seconds": round(took[0], 2), "searches": len(calls), "search_ms": milliseconds(calls)}


def measure(rows: int, dim: int, directory: Path) -> dict[str, object]:
    spare_rows = sum(size * count for size, count in TRANSACTIONS) + max(ADDED)
    points, queries = clustered(rows + spare_rows, dim)
    ScannIndex.build(points[:rows], [f"d{i}" for i in range(rows)]).save(directory)
    start = time.perf_counter()
    index = LiveIndex.open(directory, write=True)
    result: dict[str, object] = {"open_s": round(time.perf_counter() - start, 2)}
    search_one_by_one(index, queries, 20)
    changes = Changes(index, points[rows:])
    searches = {"unchanged": milliseconds(search_one_by_one(index, queries, CALLS))}
    for count in ADDED:
        while changes.next < count:
            changes.add(min(1_000, count - changes.next))
        calls = search_one_by_one(index, queries, CALLS)
        searches[f"{count} added"] = milliseconds(calls)
    index.delete([f"d{row}" for row in range(0, rows, 10)])
    calls = search_one_by_one(index, queries, CALLS)
    searches[f"{max(ADDED)} added, a tenth deleted"] = milliseconds(calls)
    result["search_ms"] = searches
    result["add_ms"] = {
        f"{size} documents": milliseconds([changes.add(size) for _ in range(count)])
        for size, count in TRANSACTIONS
    }
    result["compaction"] = during_a_compaction(index, queries)
    result["search_ms_compacted"] = milliseconds(search_one_by_one(index, queries, CALLS))
    result["changes_mb"] = round(index.status().changes_bytes / 1e6, 1)
    index.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--directory", help="where the index is made; by default a temporary one")
    args = parser.parse_args()
    about = {
        "vectors": args.vectors,
        "dim": args.dim,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("scann", "numpy")},
        "sqlite": sqlite3.sqlite_version,
    }
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        print(
            json.dumps({**about, **measure(args.vectors, args.dim, Path(directory, "i"))}, indent=2)
        )


if __name__ == "__main__":
    main()
