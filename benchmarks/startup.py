"""How long does `tfde --help` take, and how much work is a model's first embedding?

    python benchmarks/startup.py [--runs 10] [--model DIRECTORY]

A fresh process each time, with the command that the environment of this Python has. Prints one
JSON object: lowest, median and highest seconds; one run that does not count goes first. Of the
first embedding they are processor seconds from `DualEncoder.load` to the vector, without
TensorFlow's import; the model is all-MiniLM-L6-v2.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import inputs
import side_by_side

FIRST_EMBEDDING = """
import sys, time, tensorflow, tfde
begun = time.process_time()
tfde.DualEncoder.load(sys.argv[1]).encode_queries("how long does it take?")
print(time.process_time() - begun)
"""


def first_embedding(model: str) -> float:
    """Returns the processor seconds of loading a model and of its first embedding."""
    command = [sys.executable, "-c", FIRST_EMBEDDING, model]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def seconds(command: list[str]) -> float:
    """Returns how long the command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--model", default=inputs.MINILM, help="sentence-transformers directory")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    command = [str(Path(sys.executable).with_name("tfde")), "--help"]
    found = {"help": measured(lambda: seconds(command), args.runs)}
    model = inputs.model_directory(args.model)
    found["first_embedding"] = measured(lambda: first_embedding(model), args.runs)
    side_by_side.finish(found, ["tfde"], args.output)


def measured(once: Callable[[], float], runs: int) -> dict[str, float]:
    """Returns lowest, median and highest of so many runs, after one that does not count."""
    once()
    return summary([once() for _ in range(runs)])


def summary(seconds: list[float]) -> dict[str, float]:
    """Returns lowest, median and highest."""
    times = sorted(seconds)
    return {
        "runs": len(times),
        "lowest_s": round(times[0], 3),
        "median_s": round(statistics.median(times), 3),
        "highest_s": round(times[-1], 3),
    }


if __name__ == "__main__":
    main()
