"""What does each in-graph retriever find, how long does it take, and what memory does it need?

    python benchmarks/retrievers.py [--sizes 10000x128 100000x128 1000000x128 10000x768 ...]
        [--retrievers exact_float32 ...] [--target-recall 0.95] [--embeddings DIR] [--folder DIR]

Vectors are a mixture of 2,000 Gaussians around random centres, of unit length, with 1,000 held-out
queries of the same mixture (clustered_vectors.py, seed 0); or all of a directory that `tfde
encode` wrote, with 1,000 stored vectors moved to cosine 0.8 of themselves as queries (seed 0). On
the first half of the queries the partitioned retrievers choose how many leaves they search; the
other half is asked.

Each retriever is made in one process and answers in another, which has loaded nothing but
TensorFlow (and ScaNN's ops) and the SavedModel. It asks the signature `search`, k = 10: no text, no
server. Prints JSON lines: the machine first, then one line a size and retriever with recall@10
against exact search in float32, the median milliseconds of a call of 1 query and of 32, and MiB:
resident after the searches and at the peak of loading, both less what the process had before
loading, and the SavedModel on disk. A retriever whose process ends early (memory) has `failed`.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from training_memory import memory

SEED = 0
K = 10
QUERIES = 1000
SINGLE_QUERIES = 200
BATCH = 32
RETRIEVERS = [
    "exact_float32",
    "exact_bfloat16",
    "exact_int8",
    "partitioned_float32",
    "partitioned_bfloat16",
    "partitioned_int8",
    "scann",
]
SIZES = [f"{rows}x{dim}" for dim in (128, 768) for rows in (10_000, 100_000, 1_000_000)]


def make_data(folder: Path, rows: int, dim: int, embeddings: str | None) -> None:
    """Writes vectors, queries and the exact answers."""
    from clustered_vectors import clustered

    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.recall import sample_queries
    from tfde.retrieval.top_k import exact_top_k

    if embeddings is None:
        vectors, queries = clustered(rows, dim)
    else:
        vectors = Embeddings.open(embeddings).read()
        queries = sample_queries(vectors, QUERIES, SEED)
    choosing, queries = np.array_split(queries, 2)
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "choosing.npy", choosing)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "wanted.npy", exact_top_k([vectors], queries, K)[1])


def build(folder: Path, name: str, target_recall: float) -> dict:
    """Writes a retriever's SavedModel; returns what is to be known about it."""
    import tfde  # isort: skip  # sets an environment variable

    import tensorflow as tf

    from tfde.export.partitioned_retriever import build_partitioned_retriever
    from tfde.export.retriever import ExactRetriever, save_retriever

    class NoText(tf.Module):
        """Stands where a retriever has its query encoder."""

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def encode(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"embeddings": tf.zeros([tf.shape(text)[0], dim])}

    vectors = np.load(folder / "vectors.npy")
    dim = vectors.shape[1]
    doc_ids = [f"d{number}" for number in range(len(vectors))]
    kind, _, dtype = name.partition("_")
    about: dict = {"tfde": tfde.__version__}
    start = time.perf_counter()
    if kind == "scann":
        from tfde.export.scann_retriever import ScannRetriever, save_scann_retriever
        from tfde.retrieval.scann_index import ScannIndex

        index = ScannIndex.build(vectors, doc_ids)
        about["kind"] = index.parameters.kind
        save_scann_retriever(ScannRetriever(NoText(), index), folder / "model")
    elif kind == "exact":
        save_retriever(ExactRetriever(NoText(), vectors, doc_ids, dtype=dtype), folder / "model")
    else:
        retriever, found = build_partitioned_retriever(
            NoText(),
            vectors,
            doc_ids,
            query_embeddings=np.load(folder / "choosing.npy"),
            target_recall=target_recall,
            dtype=dtype,
        )
        about |= {name: found[name] for name in ("leaves", "leaves_to_search", "target_recall")}
        save_retriever(retriever, folder / "model")
    return {**about, "build_s": round(time.perf_counter() - start, 1)}


def ask(folder: Path, name: str) -> dict:
    """Loads a retriever and measures it."""
    import tensorflow as tf

    if name == "scann":
        from tfde.environment import load_scann_ops

        load_scann_ops()

    queries, wanted = np.load(folder / "queries.npy"), np.load(folder / "wanted.npy")
    tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]))  # starts the threads
    before = memory("self", "VmRSS")
    start = time.perf_counter()
    model = tf.saved_model.load(str(folder / "model"))
    load_s = time.perf_counter() - start
    loading = memory("self", "VmHWM")
    search, k = model.signatures["search"], tf.constant(K)

    def times(size: int, limit: int) -> tuple[float, np.ndarray]:
        starts = range(0, min(limit, len(queries)) // size * size, size)
        batches = [tf.constant(queries[start : start + size]) for start in starts]
        search(embeddings=batches[0], k=k)
        seconds, found = [], []
        for batch in batches:
            start = time.perf_counter()
            found.append(search(embeddings=batch, k=k)["indices"].numpy())
            seconds.append(time.perf_counter() - start)
        return float(np.median(seconds)), np.concatenate(found)

    alone_s, _ = times(1, SINGLE_QUERIES)
    batch_s, found = times(min(BATCH, len(queries)), len(queries))
    pairs = zip(found, wanted, strict=False)
    recall = np.mean([len(np.intersect1d(*pair)) / wanted.shape[1] for pair in pairs])
    stored = sum(file.stat().st_size for file in (folder / "model").rglob("*") if file.is_file())
    return {
        "recall_at_10": round(float(recall), 4),
        "p50_ms_1": round(1e3 * alone_s, 3),
        f"p50_ms_{BATCH}": round(1e3 * batch_s, 3),
        "resident_mib": _mib(memory("self", "VmRSS") - before),
        "loading_peak_mib": _mib(loading - before),
        "stored_mib": _mib(stored),
        "load_s": round(load_s, 2),
    }


def run(step: str, folder: str, *arguments: str) -> dict:
    """Runs one step in a process of its own and returns what it printed."""
    command = [sys.executable, __file__, "--step", step, "--folder", folder, *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        return {"failed": f"{step}: ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, size: str) -> None:
    """Prints a line for each retriever of one size."""
    rows, dim = map(int, size.split("x"))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        real = ["--embeddings", args.embeddings] if args.embeddings else []
        failed = run("data", folder, "--sizes", size, *real)
        for name in args.retrievers:
            options = ["--retrievers", name, "--target-recall", str(args.target_recall)]
            found = failed or run("build", folder, *options)
            if "failed" not in found:
                found |= run("ask", folder, *options)
            line = {"rows": rows, "dim": dim, "retriever": name, **found}
            print(json.dumps(line), flush=True)
            shutil.rmtree(Path(folder, "model"), ignore_errors=True)


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def main() -> None:
    """Runs the processes, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="ROWSxDIM")
    parser.add_argument("--retrievers", nargs="+", choices=RETRIEVERS, default=RETRIEVERS)
    parser.add_argument("--target-recall", type=float, default=0.95, help="of the partitioned")
    parser.add_argument("--embeddings", help="directory that `tfde encode` wrote, for --sizes")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--step", choices=["data", "build", "ask"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step is None:
        about = {
            "command": shlex.join(["python", "benchmarks/retrievers.py", *sys.argv[1:]]),
            "seed": SEED,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: version(name) for name in ("tensorflow", "scann", "numpy")},
        }
        print(json.dumps(about), flush=True)
        if args.embeddings:
            from tfde.retrieval.embeddings import Embeddings

            args.sizes = ["{}x{}".format(*Embeddings.open(args.embeddings).shape)]
        for size in args.sizes:
            measure(args, size)
        return
    folder = Path(args.folder)
    found: dict = {}
    if args.step == "data":
        make_data(folder, *map(int, args.sizes[0].split("x")), args.embeddings)
    elif args.step == "build":
        found = build(folder, args.retrievers[0], args.target_recall)
    else:
        found = ask(folder, args.retrievers[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
