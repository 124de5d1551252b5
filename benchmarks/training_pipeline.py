"""How soon does `tfde train` take its first step, and where does the time of a training go?

    python benchmarks/training_pipeline.py [--model DIRECTORY] [--dataset squad] [--steps 60]
        [--batch 32] [--starts 3]

The command itself, with pipelines/recipes/finetune.yaml: a start and a dataset directory; 500 of
its dev questions are measured on 1,000 documents before the first step, twice on the way, and for
both means with the start.

- `first_step`: seconds from the command to the end of the first step, without validation.
- `shares`: of the training's time, as its last line says it; `outside` is from the command to the
  first step and from the last one to the end. Prints one JSON object.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import inputs
import side_by_side
from startup import summary

RECIPE = side_by_side.ROOT / "pipelines" / "recipes" / "finetune.yaml"
STAGE = "--run.stages.finetune"
PART = re.compile(r"([a-z ]+) (\d+) s[,)]")


def command(args: argparse.Namespace, output: Path, *more: str) -> list[str]:
    """Returns the command of a training."""
    return [
        *(sys.executable, "-m", "tfde.cli.main", "train", "--run", str(RECIPE)),
        *("--output", str(output), f"{STAGE}.steps", str(args.steps)),
        *(f"{STAGE}.batch_size", str(args.batch)),
        *(f"{STAGE}.optimizer.warmup_steps", str(args.steps // 10)),
        *("--run.precision", args.precision),
        *more,
    ]


def quiet(line: list[str], environment: dict[str, str]) -> subprocess.Popen:
    """Starts a command of which only what it logs is read."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, **pipes, text=True, env=environment)


def read_until(process: subprocess.Popen, beginning: str) -> tuple[float, str]:
    """Returns when a line came that has this in it, and the line."""
    seen = []
    for line in process.stderr:
        seen.append(line)
        if beginning in line:
            return time.perf_counter(), line
    raise SystemExit("".join(seen[-10:]))


def first_step(args: argparse.Namespace, environment: dict[str, str]) -> float:
    """Returns the seconds to the end of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        more = [f"{STAGE}.validation", "null", f"{STAGE}.start_shares", "[]"]
        more += [f"{STAGE}.min_gain_kept", "null", f"{STAGE}.log_every_steps", "1"]
        line = command(args, Path(folder) / "run", *more)
        begun = time.perf_counter()
        with quiet(line, environment) as process:
            told, _ = read_until(process, "step 1 of ")
            process.kill()
    return told - begun


def shares(args: argparse.Namespace, environment: dict[str, str]) -> dict[str, float]:
    """Returns what each part had of a whole training's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        every = str(max(1, args.steps // 2))
        more = [f"{STAGE}.validation.every_steps", every, f"{STAGE}.checkpoint_every_steps", every]
        more += [f"{STAGE}.validation.max_queries", "500"]
        more += [f"{STAGE}.validation.max_documents", "1000"]
        line = command(args, Path(folder) / "run", *more)
        begun = time.perf_counter()
        with quiet(line, environment) as process:
            _, said = read_until(process, "stage finetune took ")
            process.stderr.read()
        whole = time.perf_counter() - begun
        if process.returncode:
            raise SystemExit(f"training_pipeline: tfde train ended with {process.returncode}")
    parts = {name.strip(): int(seconds) for name, seconds in PART.findall(said)}
    parts["outside"] = whole - sum(parts.values())
    found = {name: round(seconds / whole, 3) for name, seconds in parts.items()}
    return {"seconds": round(whole, 1), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=inputs.MINILM, help="sentence-transformers directory")
    parser.add_argument("--dataset", default="squad", help="of TFDE_DATA, or a directory")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="auto", help="of the recipe")
    parser.add_argument("--starts", type=int, default=3, help="how often the first step is timed")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    about = {"DATASET": str(inputs.dataset_directory(args.dataset)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment = {**os.environ, **about, "START": inputs.model_directory(args.model)}
    result = {
        "first_step": summary([first_step(args, environment) for _ in range(args.starts)]),
        "shares": shares(args, environment),
        "steps": args.steps,
    }
    side_by_side.finish(result, ("tfde", "tensorflow", "keras"), args.output)


if __name__ == "__main__":
    main()
