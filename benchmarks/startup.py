"""How long does `tfde --help` take?

    python benchmarks/startup.py [--runs 10]

A fresh process each time, with the command that the environment of this Python has. Prints one
JSON object: lowest, median and highest seconds; one run that does not count goes first.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import side_by_side


def seconds(command: list[str]) -> float:
    """Returns how long the command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    command = [str(Path(sys.executable).with_name("tfde")), "--help"]
    seconds(command)
    times = sorted(seconds(command) for _ in range(args.runs))
    result = {
        "runs": args.runs,
        "lowest_s": round(times[0], 3),
        "median_s": round(statistics.median(times), 3),
        "highest_s": round(times[-1], 3),
    }
    side_by_side.finish({"help": result}, ["tfde"], args.output)


if __name__ == "__main__":
    main()
