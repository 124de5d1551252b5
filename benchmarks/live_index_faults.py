"""Does a live index keep every acknowledged change through kills, and tell all damage?

    python benchmarks/live_index_faults.py --kills 1000 --damages 1000

A process changes and compacts an index all the time and is killed at a random moment. The next
one goes on with what is there. After each kill the index must hold every change that was
acknowledged, vector by vector, and nothing else but the change that was under way. Between kills
a copy of the files is damaged: one byte is flipped, or a file is cut. Then the index is right all
the same, or opening it says what is broken; anything else is counted as lost.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tfde.errors import CorruptError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.change_log import ACKNOWLEDGED, FILE
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.live.recover_changes import recover
from tfde.types import Document

DIM = 32
IDS = 200
LOGS = (FILE, f"{FILE}-wal", ACKNOWLEDGED)
Vectors = dict[str, np.ndarray]


def change(number: int) -> tuple[list[str], np.ndarray | None]:
    """Returns change `number`: ids, and their new vectors, or `None` where they are deleted."""
    generator = np.random.default_rng(number)
    ids = [f"d{i}" for i in generator.permutation(IDS)[: generator.integers(1, 9)]]
    if number % 4 == 3:
        return ids, None
    return ids, generator.standard_normal((len(ids), DIM)).astype(np.float32)


def replay(expected: Vectors, number: int) -> None:
    """Makes a change in a dictionary."""
    ids, vectors = change(number)
    for doc_id in ids:
        expected.pop(doc_id, None)
    if vectors is not None:
        expected.update(zip(ids, vectors, strict=True))


def write_changes(path: Path, number: int, sender: Any, compact_pause_s: float) -> None:
    """Makes changes from `number` on, and sends each number once it is acknowledged."""
    index = LiveIndex.open(path, write=True)

    def compact() -> None:
        while True:
            time.sleep(compact_pause_s)
            index.compact()

    threading.Thread(target=compact, daemon=True).start()
    while True:
        ids, vectors = change(number)
        if vectors is None:
            index.delete(ids)
        else:
            texts = [Document(doc_id, "title", f"text {number} " * 40) for doc_id in ids]
            index.add(texts, vectors, fingerprint="f")
        sender.send(number)
        number += 1


def holds(index: LiveIndex, *expected: Vectors) -> bool:
    """Whether an index holds the vectors of one of these in its order, and no others."""
    doc_ids, vectors = index.doc_ids.tolist(), index.vectors()
    return any(
        doc_ids == list(one) and np.array_equal(vectors, np.stack(list(one.values())))
        for one in expected
    )


def kill_one(processes: Any, path: Path, number: int, moments: random.Random) -> list[int]:
    """Lets a process write and kills it; returns the numbers that it acknowledged."""
    receiver, sender = processes.Pipe(duplex=False)
    pause = moments.choice([0.0, 0.05, 60.0])
    process = processes.Process(target=write_changes, args=(path, number, sender, pause))
    process.start()
    sender.close()
    acknowledged: list[int] = []
    try:
        acknowledged.append(receiver.recv())
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        while True:
            acknowledged.append(receiver.recv())
    except EOFError:
        pass
    process.join()
    receiver.close()
    return acknowledged


def damage(path: Path, moments: random.Random) -> str:
    """Damages one of the files of changes; returns how."""
    files = [path / name for name in LOGS if (path / name).is_file()]
    file = moments.choice([file for file in files if file.stat().st_size])
    content = bytearray(file.read_bytes())
    kind = moments.choice(["flipped", "cut"])
    if kind == "cut":
        del content[moments.randrange(len(content)) :]
    else:
        content[moments.randrange(len(content))] ^= moments.randrange(1, 256)
    file.write_bytes(content)
    return f"{file.name} {kind}"


def try_damage(
    path: Path, copy: Path, allowed: list[Vectors], moments: random.Random
) -> tuple[str, str]:
    """Damages a copy of an index; returns how, and what came of it.

    `allowed` is what it held at the last acknowledged change, and with one that was under way.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    how = damage(copy, moments)
    try:
        index = LiveIndex.open(copy)
        return how, "right" if holds(index, *allowed) else "LOST"
    except CorruptError:
        pass
    done = recover(copy)
    is_right = holds(LiveIndex.open(copy), *allowed)
    if done.is_whole and not is_right:
        return how, "LOST"
    return how, "told, recovered whole" if is_right else "told, recovered in part"


def main() -> int:
    """Runs the campaign; returns 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--damages", type=int, default=1000, help="of copies, between the kills")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tfde.retrieval.live.live_index"])
    moments = random.Random(args.seed)
    expected: Vectors = {f"d{i}": np.full(DIM, i, np.float32) for i in range(IDS // 2)}
    results: collections.Counter[tuple[str, str]] = collections.Counter()
    number = changes = lost = half = 0
    generations = set()
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder, "index"), Path(folder, "copy")
        ExactIndex.build(np.stack(list(expected.values())), list(expected), fingerprint="f").save(
            path
        )
        for kill in range(1, args.kills + 1):
            acknowledged = kill_one(processes, path, number, moments)
            changes += len(acknowledged)
            for number in acknowledged:
                replay(expected, number)
            number += bool(acknowledged)
            allowed = [dict(expected)]
            index = LiveIndex.open(path)  # a reader, before anybody cleaned up
            if not holds(index, expected):
                replay(expected, number)  # committed, and not yet acknowledged
                number += 1
                half += 1
                allowed.append(expected)
                if not holds(index, expected):
                    lost += 1
                    break
            generations.add(index.version.partition(".")[0])
            for _ in range(args.damages * kill // args.kills - sum(results.values())):
                results[try_damage(path, copy, allowed, moments)] += 1
            if sys.stderr.isatty() or kill % 100 == 0:
                print(f"{kill} kills, {changes} changes", file=sys.stderr)
    lost += sum(count for (_, what), count in results.items() if what == "LOST")
    report = {
        "kills": kill,
        "changes_acknowledged": changes,
        "committed_but_not_acknowledged": half,
        "generations": len(generations),
        "damages": sum(results.values()),
        "outcomes": {f"{how}: {what}": count for (how, what), count in sorted(results.items())},
        "lost": lost,
    }
    print(json.dumps(report, indent=2))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
