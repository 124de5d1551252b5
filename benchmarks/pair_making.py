"""How many pages a second become pre-training pairs, in how much memory, on one and two workers?

    python benchmarks/pair_making.py [--pages PAGES] [--workers 1 2] [--copies 1 4] [--output FILE]

For each number of workers and of copies, a process of its own cuts the pages into sentences
(`build_store`) and writes one epoch of ICT, BFS and WLP evenly mixed (`write_pair_file`). A copy is
the same pages under other ids, so that the file grows and nothing else does. Pages default to
wikispeedia under TFDE_DATA. Prints one JSON object: seconds, pages and pairs per second (the start
of the workers included), and the largest memory that the kernel counted as resident in the main
process and in any worker; mapped files count where they were touched, though the kernel may drop
those pages at any time.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import side_by_side
from training_memory import memory

SEED = 0
TASKS = ("ict", "bfs", "wlp")


def copy_pages(source: str, target: Path, copies: int) -> None:
    """Writes the pages several times, with ids and links of their own."""
    from tfde.data.pages import Page, read_pages, write_pages

    def pages() -> Iterator[Page]:
        for number in range(copies):
            mark = f".{number}" if number else ""
            for page in read_pages(source):
                links = tuple(link + mark for link in page.links)
                yield page._replace(page_id=page.page_id + mark, links=links)

    write_pages(target, pages())


def make(pages: str, workers: int, folder: str) -> None:
    """Makes pairs and prints what it took; runs in a process of its own."""
    from tfde.pretraining.build_store import build_store
    from tfde.pretraining.pair_stream import PairStream
    from tfde.pretraining.write_pair_file import write_pair_file

    start = time.perf_counter()
    store = build_store(pages, Path(folder, "store"), workers=workers)
    cut = time.perf_counter()
    stream = PairStream(store, TASKS, seed=SEED)
    write_pair_file(stream, Path(folder, "pairs.jsonl"), workers=workers)
    end = time.perf_counter()
    figures = {
        "pages": len(store),
        "passages": store.about["passages"],
        "pairs": len(stream),
        "cut_s": round(cut - start, 1),
        "draw_s": round(end - cut, 1),
        "cut_pages_per_s": round(len(store) / (cut - start), 1),
        "draw_pairs_per_s": round(len(stream) / (end - cut), 1),
        "pages_per_s": round(len(store) / (end - start), 1),
        "peak_bytes": memory("self", "VmHWM"),
        "peak_worker_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "store_bytes": sum(file.stat().st_size for file in store.path.iterdir()),
    }
    print(json.dumps(figures))


def main() -> None:
    """Runs one process for each number of workers and copies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", help="a file of pages; wikispeedia under TFDE_DATA by default")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--copies", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make(args.pages, args.workers[0], args.make)
        return
    pages = args.pages or str(Path(os.environ["TFDE_DATA"], "wikispeedia", "pages.jsonl.gz"))
    rows = []
    for copies in args.copies:
        with tempfile.TemporaryDirectory() as source:
            path = Path(source, "pages.jsonl.gz")
            copy_pages(pages, path, copies)
            for workers in args.workers:
                with tempfile.TemporaryDirectory() as folder:
                    command = [sys.executable, __file__, "--make", folder, "--pages", str(path)]
                    command += ["--workers", str(workers)]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                figures = json.loads(done.stdout.splitlines()[-1])
                rows.append({"copies": copies, "workers": workers, **figures})
    side_by_side.finish({"seed": SEED, "tasks": TASKS, "runs": rows}, ["sentencex"], args.output)


if __name__ == "__main__":
    main()
