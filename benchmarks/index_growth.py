"""How does the cost of our index grow with the corpus, the dimension and k?

    python benchmarks/index_growth.py [--corpora 10000 30000 100000 300000 1000000]
        [--dims 64 128 256 384 768] [--ks 1 10 100 1000] [--shards 10] [--figure PATH]

Data of `clustered_vectors.clustered` (seed 0): 1,000 queries, of which every second chooses how to
search, as `tfde build-index --target_recall` does, and the others are measured. Corpora are
of 128 dimensions with k = 10; dimensions with `--dims-rows` vectors and k = 10; k with `--ks-rows`
vectors of 128 dimensions. An index is built in one process and searched in a fresh one: its bytes
are what loading and searching made resident. Times are of one thread of Python, for one query a
call and for 100, the median of three turns. Below 20,000 vectors the index is exact.

The last point is no measurement but arithmetic: so many shards of the largest corpus, built and
searched one after another, and the time to merge what they find, which is measured. A shard that
finds the target's share of its own best finds as much of the best of all.

Prints one JSON object; `--figure` draws milliseconds a query and seconds of building.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import side_by_side
from index_engines import Scann
from index_measures import milliseconds, recall
from training_memory import memory

SEED, DIM, K, BATCH, TURNS = 0, 128, 10, 100, 3
COSTS = ("ms_alone", "ms_in_batch", "build_s")


def build(folder: Path, rows: int, dim: int) -> dict:
    """Saves an index and queries with their exact answers of all k."""
    from clustered_vectors import clustered

    vectors, queries = clustered(rows, dim)
    engine = Scann()
    start = time.perf_counter()
    engine.build(vectors)
    seconds = time.perf_counter() - start
    engine.save(folder / "index")
    np.save(folder / "queries.npy", queries)
    return {"rows": rows, "dim": dim, "build_s": round(seconds, 2)}


def search(folder: Path, ks: list[int], target: float, least_s: float) -> dict:
    """Loads the index; returns its bytes, and recall and times for each k."""
    from tfde.retrieval.top_k import exact_top_k

    engine, queries = Scann(), np.load(folder / "queries.npy")
    before = memory("self", "VmRSS")
    engine.load(folder / "index")
    engine.search(queries, K)
    resident = memory("self", "VmRSS") - before
    vectors = engine.vectors()
    points = []
    for k in ks:
        wanted = exact_top_k([vectors], queries, k)[1]
        start = time.perf_counter()
        (way,) = engine.ways(queries[::2], wanted[::2], target, k)
        tuning = time.perf_counter() - start
        engine.configure(way.setting)
        point = {"k": k, "setting": way.setting, "tuning_s": round(tuning, 2)}
        point["recall"] = round(recall(engine.search(queries[1::2], k), wanted[1::2]), 4)
        for name, batch in (("ms_alone", 1), ("ms_in_batch", BATCH)):
            options = {"batch": batch, "threads": 1, "least_s": least_s}
            turns = [milliseconds(engine, queries[1::2], k, **options) for _ in range(TURNS)]
            point[name] = round(statistics.median(turns), 4)
        points.append(point)
    return {
        "kind": engine.kind(),
        "bytes_per_vector": round(resident / len(vectors), 1),
        "of_which_ids": round(engine.id_bytes() / len(vectors), 1),
        "points": points,
    }


def points_of(args: argparse.Namespace, rows: int, dim: int, ks: list[int]) -> list[dict]:
    """Returns a point for each k, measured in two processes."""
    print(rows, dim, ks, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        options = ["--folder", folder, "--ks", *map(str, ks), "--corpora", str(rows)]
        options += ["--dims", str(dim), "--target-recall", str(args.target_recall)]
        options += ["--least-s", str(args.least_s)]
        found = {}
        for step in ("build", "search"):
            done = subprocess.run(
                [sys.executable, __file__, "--step", step, *options],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            found |= json.loads(done.stdout.splitlines()[-1])
    return [{**found, **point} for point in found.pop("points")]


def merge_ms(shards: int, batch: int) -> float:
    """Returns the milliseconds a query to merge the answers of shards."""
    from tfde.retrieval.top_k import merge_top_k

    rng = np.random.default_rng(SEED)
    parts = [
        (rng.random((batch, K), np.float32), rng.integers(0, 1_000_000, (batch, K)))
        for _ in range(shards)
    ]
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        merge_top_k(parts, K)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds) / batch


def in_shards(point: dict, shards: int) -> dict:
    """Returns the point of as many shards as the one measured, one after another."""
    batches = {"ms_alone": 1, "ms_in_batch": BATCH}
    merging = {name: merge_ms(shards, batch) for name, batch in batches.items()}
    return {
        **point,
        "rows": shards * point["rows"],
        "build_s": round(shards * point["build_s"], 2),
        "tuning_s": round(shards * point["tuning_s"], 2),
        **{name: round(shards * point[name] + ms, 4) for name, ms in merging.items()},
        "computed_of_shards": shards,
        "merging": {name: round(ms, 4) for name, ms in merging.items()},
    }


def draw(panels: dict[str, list[dict]], figure: Path, target: float) -> None:
    """Draws one panel for each of rows, dim and k."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 3.6), layout="constrained")
    labels = ("one query a call, ms", f"{BATCH} queries a call, ms a query", "building, s")
    for axes, (name, points) in zip(canvas.subplots(1, len(panels)), panels.items(), strict=True):
        x = [point[name] for point in points]
        for cost, label in zip(COSTS, labels, strict=True):
            axes.plot(x, [point[cost] for point in points], marker="o", label=label)
        for point in points:
            if "computed_of_shards" in point:
                axes.axvspan(point[name] / 2, point[name] * 2, color="0.9")
        axes.set_xscale("log")
        axes.set_yscale("log")
        if name == "dim":  # no powers of ten
            axes.set_xticks(x, [str(value) for value in x])
            axes.minorticks_off()
        axes.set_xlabel(
            {"rows": "vectors (grey: computed of shards)", "dim": "dimensions"}.get(name, name)
        )
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    canvas.suptitle(f"recall of at least {target:g}", fontsize="medium")
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)


def main() -> None:
    """Runs the processes, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    corpora = [10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--corpora", type=int, nargs="+", default=corpora)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256, 384, 768])
    parser.add_argument("--dims-rows", type=int, default=100_000)
    parser.add_argument("--ks", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--ks-rows", type=int, default=300_000)
    parser.add_argument("--shards", type=int, default=10, help="of the largest corpus")
    parser.add_argument("--target-recall", type=float, default=0.95)
    parser.add_argument("--least-s", type=float, default=0.5, help="seconds of a turn, at least")
    parser.add_argument("--folder", help="where the temporary folders are made")
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    parser.add_argument("--step", choices=["build", "search"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step == "build":
        print(json.dumps(build(Path(args.folder), args.corpora[0], args.dims[0])))
        return
    if args.step == "search":
        found = search(Path(args.folder), args.ks, args.target_recall, args.least_s)
        print(json.dumps(found))
        return
    grown = [point for rows in sorted(args.corpora) for point in points_of(args, rows, DIM, [K])]
    panels = {
        "rows": [*grown, in_shards(grown[-1], args.shards)],
        "dim": [point for dim in args.dims for point in points_of(args, args.dims_rows, dim, [K])],
        "k": points_of(args, args.ks_rows, DIM, args.ks),
    }
    if args.figure:
        draw(panels, args.figure, args.target_recall)
    sizes = {"seed": SEED, "target_recall": args.target_recall, "batch": BATCH}
    side_by_side.finish({**sizes, **panels}, ("scann", "numpy"), args.output)


if __name__ == "__main__":
    main()
