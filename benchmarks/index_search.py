"""How much does ScaNN find of what exact search finds, and how long does a query take?

    python benchmarks/index_search.py [--vectors 100000 300000] [--kind tree]

Clustered unit vectors of 128 dimensions, held-out queries, default parameters; prints one JSON
object.
"""

import argparse
import json
import os
import platform
import time
from importlib.metadata import version

import numpy as np

from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters

SEED = 0
CLUSTERS = 2000
QUERIES = 1000


def clustered(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors and held-out queries around the same centres, unit length."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((CLUSTERS, dim)).astype(np.float32)
    points = centres[rng.integers(0, CLUSTERS, rows + QUERIES)]
    points = points + 0.7 * rng.standard_normal(points.shape, dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points[:rows], points[rows:]


def measure(rows: int, dim: int, kind: str | None) -> dict[str, object]:
    vectors, queries = clustered(rows, dim)
    doc_ids = [f"d{number}" for number in range(rows)]
    start = time.perf_counter()
    index = ScannIndex.build(vectors, doc_ids, parameters=ScannParameters(kind=kind))
    seconds = time.perf_counter() - start
    found = index.recall(10, query_embeddings=queries)
    return {
        "vectors": rows,
        "kind": index.parameters.kind,
        "leaves": index.parameters.num_leaves,
        "leaves_to_search": index.parameters.num_leaves_to_search,
        "build_s": round(seconds, 2),
        "recall_at_10": round(found.recall, 4),
        "ms_alone": round(1e3 * found.seconds_per_single_query, 3),
        "ms_in_batch": round(1e3 * found.seconds_per_query, 3),
        "ms_exact_in_batch": round(1e3 * found.exact_seconds_per_query, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--kind", choices=["exact", "hash", "tree"])
    args = parser.parse_args()
    about = {
        "seed": SEED,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("scann", "numpy")},
    }
    rows = [measure(rows, args.dim, args.kind) for rows in args.vectors]
    print(json.dumps({**about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
