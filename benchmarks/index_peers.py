"""How fast is our index for a recall, against HNSW of faiss (alone, as our engine) and of hnswlib?

    python benchmarks/index_peers.py [--rows 1000000] [--dim 128] [--targets 0.95 0.99]
        [--batches 1 100] [--threads 1 2] [--peers tfde_faiss_hnsw faiss_hnsw ...] [--folder DIR]

faiss's IVF-PQ is asked, too. Unit vectors and 1,000 held-out queries of a mixture of 2,000
Gaussians (clustered_vectors.py, seed 0), inner product, the 10 best; index_engines.py says how each
index is built. Recall is the share of the exact 10 best.

- Each index is built once, in a process of its own with all cores that reports the seconds and the
  peak of memory, and is saved. The seconds are those of the structure: training and filling.
- A fresh process loads it and answers all queries: what is resident then, less what was before
  loading, is its memory. It also says whether the library releases Python's lock (GIL).
- A fresh process chooses for each target, on the first half of the queries: the least ef, or for
  each k_factor the least nprobe, that reaches it (doubled, then bisected, as ours does: no grid is
  finer); of several the fastest, for each number of threads and queries a call. Ours chooses once,
  by the time of single queries, as `tfde build-index --target_recall` does. Where none reaches the
  target, that is said, with the best recall found.
- Then ours and a peer answer the other half in turns (side_by_side.py), each in a process that is
  bound to as many cores as threads are asked for. Single queries (`--batches 1`) come from as many
  threads of Python, batches from one, and the library may use its own, as ours does. The recall on
  this half is reported beside the times.

`--folder` keeps data, indexes, memory and choices, and a later run goes on from there: only the
times in turns are always measured anew. Prints one JSON object; bytes are a vector's.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import side_by_side
from index_engines import ENGINES
from index_measures import Engine, milliseconds, recall, releases_gil
from training_memory import memory

SEED = 0
K = 10
OURS = "scann"
PACKAGES = ("scann", "faiss-cpu", "hnswlib", "numpy")


def make_data(folder: Path, rows: int, dim: int) -> dict:
    """Writes vectors, both halves of the queries and their exact answers."""
    from clustered_vectors import clustered

    from tfde.retrieval.top_k import exact_top_k

    vectors, queries = clustered(rows, dim)
    np.save(folder / "vectors.npy", vectors)
    for name, half in zip(("choosing", "measured"), np.array_split(queries, 2), strict=True):
        np.save(folder / f"{name}.npy", half)
        np.save(folder / f"{name}_wanted.npy", exact_top_k([vectors], half, K)[1])
    return {"rows": rows, "dim": dim}


def read_queries(folder: Path, half: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns queries and the exact positions."""
    return np.load(folder / f"{half}.npy"), np.load(folder / f"{half}_wanted.npy")


def build(folder: Path, name: str) -> dict:
    """Builds and saves an index; returns what that took."""
    engine = ENGINES[name]()
    before = memory("self", "VmRSS")
    vectors = np.load(folder / "vectors.npy")
    start = time.perf_counter()
    how = engine.build(vectors)
    seconds = time.perf_counter() - start
    peak = memory("self", "VmHWM") - before
    engine.save(folder / name)
    path = folder / name
    files = [file for file in (path, *path.rglob("*")) if file.is_file()]
    return {
        "built": how,
        "build_s": round(seconds, 2),
        "build_peak_bytes": round(peak / len(vectors), 1),
        "stored_bytes": round(sum(file.stat().st_size for file in files) / len(vectors), 1),
    }


def weigh(folder: Path, name: str) -> dict:
    """Loads an index and asks it; returns the memory it takes."""
    engine = ENGINES[name]()
    queries = np.concatenate([read_queries(folder, half)[0] for half in ("choosing", "measured")])
    rows = np.load(folder / "vectors.npy", mmap_mode="r").shape[0]
    before = memory("self", "VmRSS")
    start = time.perf_counter()
    engine.load(folder / name)
    seconds = time.perf_counter() - start
    engine.use_threads(1)
    engine.search(queries, K)
    for row in range(len(queries)):
        engine.search(queries[row : row + 1], K)
    resident, peak = memory("self", "VmRSS") - before, memory("self", "VmHWM") - before
    return {
        "load_s": round(seconds, 2),
        "resident_bytes": round(resident / rows, 1),
        "of_which_ids": round(engine.id_bytes() / rows, 1),
        "loading_peak_bytes": round(peak / rows, 1),
        "library_mib": round(before / 2**20, 1),
        "releases_gil": releases_gil(engine, queries, K),
    }


def choose(folder: Path, name: str, args: argparse.Namespace) -> dict:
    """Finds the settings for a recall; returns the fastest for each way of asking."""
    target = args.targets[0]
    engine = ENGINES[name]()
    engine.load(folder / name)
    engine.use_threads(max(args.threads))
    queries, wanted = read_queries(folder, "choosing")
    start = time.perf_counter()
    ways = engine.ways(queries, wanted, target, K)
    found: dict = {"choosing_s": round(time.perf_counter() - start, 2)}
    reaching = [way for way in ways if way.recall >= target]
    if not reaching:
        return {**found, "best_recall": max(round(way.recall, 4) for way in ways)}

    def cost(way, batch: int, threads: int) -> float:
        engine.configure(way.setting)
        options = {"batch": batch, "threads": threads, "least_s": args.least_s}
        return min(milliseconds(engine, queries, K, **options) for _ in range(3))

    for batch, threads in itertools.product(args.batches, args.threads):
        chosen = reaching[0]
        if len(reaching) > 1:
            with limited_to(threads):
                chosen = min(reaching, key=lambda way: cost(way, batch, threads))
        found[f"{batch}_{threads}"] = {"setting": chosen.setting, "recall": chosen.recall}
    return found


def answer(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Is one side: measures a turn whenever it is asked to."""
    engine: Engine = ENGINES[name]()
    engine.load(folder / name)
    engine.configure(json.loads(args.setting))
    queries, wanted = read_queries(folder, "measured")
    engine.use_threads(args.threads[0])
    found = recall(engine.search(queries, K), wanted)
    options = {"batch": args.batches[0], "threads": args.threads[0], "least_s": args.least_s}
    side_by_side.serve(
        lambda: {"ms": milliseconds(engine, queries, K, **options)}, {"recall": round(found, 4)}
    )


def options_of(args: argparse.Namespace, folder: Path, step: str, name: str) -> list[str]:
    """Returns the arguments of a process that does a step."""
    options = ["--step", step, "--name", name, "--folder", str(folder)]
    options += ["--rows", str(args.rows), "--dim", str(args.dim), "--least-s", str(args.least_s)]
    for key in ("targets", "batches", "threads"):
        options += [f"--{key}", *map(str, getattr(args, key))]
    return options


def python_of(name: str) -> str:
    """Returns the interpreter that has the library; ScaNN and faiss are extras of tfde."""
    return str(side_by_side.peers_python()) if name == "hnswlib" else sys.executable


def done(args: argparse.Namespace, folder: Path, step: str, name: str = OURS) -> dict:
    """Returns what a step found; runs it, in a process of its own, unless a file says it."""
    words = [name, step, *([f"{args.targets[0]:g}"] if step == "choose" else [])]
    file = folder / f"{'_'.join(words)}.json"
    asked = {} if step != "choose" else {"batches": args.batches, "threads": args.threads}
    if file.exists() and (known := json.loads(file.read_text()))["asked"] == asked:
        return known["found"]
    print(*words, file=sys.stderr)
    command = [python_of(name), __file__, *options_of(args, folder, step, name)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = json.loads(run.stdout.splitlines()[-1])
    file.write_text(json.dumps({"asked": asked, "found": found}))
    return found


@contextlib.contextmanager
def limited_to(cores: int) -> Iterator[None]:
    """Binds this thread, and the processes it starts, to so many cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:cores])
    yield
    os.sched_setaffinity(0, own)


def compare(args: argparse.Namespace, folder: Path, chosen: dict[str, dict]) -> dict:
    """Lets ours and a peer answer in turns.

    Args:
        args: Of one number of queries a call and of threads.
        folder: Of the indexes.
        chosen: What `choose` found for ours and for the peer, in this order.
    """
    batch, threads = args.batches[0], args.threads[0]
    asked = {name: found.get(f"{batch}_{threads}") for name, found in chosen.items()}
    lacking = {name: chosen[name]["best_recall"] for name in asked if asked[name] is None}
    if lacking:
        return {"left_out": f"best recall of {lacking}"}
    workers = []
    for name, way in asked.items():
        options = [*options_of(args, folder, "answer", name)]
        options += ["--setting", json.dumps(way["setting"])]
        workers.append(side_by_side.Worker(python_of(name), __file__, options))
    with limited_to(threads):
        found = side_by_side.compare(*workers, pairs=args.pairs, seconds="ms")
    for side, worker, way in zip(("ours", "theirs"), workers, asked.values(), strict=True):
        found[f"{side}_ms_per_query"] = found.pop(f"{side}_s")
        found[f"{side}_recall"] = worker.about["recall"]
        found[f"{side}_setting"] = way["setting"]
        worker.close()
    return found


def measure(args: argparse.Namespace, folder: Path) -> dict:
    """Returns all comparisons asked for."""
    done(args, folder, "data")
    names = [OURS, *args.peers]
    about = {
        name: {**done(args, folder, "build", name), **done(args, folder, "weigh", name)}
        for name in names
    }
    result: dict = {"indexes": about}
    for target in args.targets:
        one = argparse.Namespace(**{**vars(args), "targets": [target]})
        chosen = {name: done(one, folder, "choose", name) for name in names}
        for name in names:
            about[name].setdefault("choosing_s", {})[f"{target:g}"] = chosen[name]["choosing_s"]
        asked = itertools.product(args.batches, args.threads, args.peers)
        for batch, threads, peer in asked:
            one.batches, one.threads = [batch], [threads]
            key = f"recall_{target:g}_batch_{batch}_threads_{threads} against {peer}"
            print(key, file=sys.stderr)
            result[key] = compare(one, folder, {name: chosen[name] for name in (OURS, peer)})
    return result


def main() -> None:
    """Runs the processes, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    peers = [name for name in ENGINES if name != OURS]
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.95, 0.99], help="recall@10")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 100], help="queries a call")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side")
    parser.add_argument("--least-s", type=float, default=0.5, help="seconds of a turn, at least")
    parser.add_argument("--folder", type=Path, help="keeps what is built, for a later run")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    for name in ("step", "name", "setting"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step == "answer":
        answer(args.folder, args.name, args)
        return
    if args.step is not None:
        steps = {
            "data": lambda: make_data(args.folder, args.rows, args.dim),
            "build": lambda: build(args.folder, args.name),
            "weigh": lambda: weigh(args.folder, args.name),
            "choose": lambda: choose(args.folder, args.name, args),
        }
        print(json.dumps(steps[args.step]()))
        return
    cores = len(os.sched_getaffinity(0))
    if max(args.threads) > cores:
        parser.error(f"--threads must be at most {cores}, the cores. Received: {args.threads}")
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder.resolve() / f"{args.rows}x{args.dim}"
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(args, folder)
    sizes = {"rows": args.rows, "dim": args.dim, "k": K, "seed": SEED, "build_threads": cores}
    packages = [name for name in PACKAGES if name != "hnswlib" or name in args.peers]
    side_by_side.finish({**sizes, **found}, packages, args.output)


if __name__ == "__main__":
    main()
