"""How much memory does a training step take, by batch, length and chunk?

    python benchmarks/training_memory.py [--batches 128 512 2048 8192] [--chunks 0 128]
        [--lengths 32] [--limit-gib 8] [--points FILE] [--figure docs/figures/training_memory.png]

Each point is a process of its own: a BERT of 2 layers and 128 dimensions (random weights), both
towers shared, queries half as long as documents, lengths drawn evenly from a quarter of the longest
to the longest, AdamW, two steps; chunk 0 is the whole batch at once. Memory is what the kernel
counts as resident (VmHWM), less what was resident before the first step. A process that would take
more than `--limit-gib` is stopped and its point is null. `--points` keeps the points of earlier
runs, so that a long series can be made piece by piece. Prints one JSON object; `--figure` draws
memory by batch for each chunk at the longest of the lengths that all of them have.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import side_by_side

SEED, LAYERS, HIDDEN, HEADS, VOCABULARY = 0, 2, 128, 2, 30_522
GIB = 2**30


def memory(process: int | str, field: str) -> int:
    """Returns a field of /proc/PROCESS/status in bytes, 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def step(batch: int, length: int, chunk: int) -> None:
    """Trains two steps and prints what they took; runs in a process of its own."""
    import numpy as np

    import tfde
    from tfde.text.word_piece.tokenizer import WordPieceTokenizer
    from tfde.towers.dual_encoder import DualEncoder

    import tensorflow as tf  # isort: skip  # tfde comes first, it sets an environment variable

    config = tfde.BertConfig(
        vocabulary_size=VOCABULARY,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=HIDDEN,
        intermediate_dim=4 * HIDDEN,
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"]
    model = DualEncoder.from_backbone(config, tokenizer=WordPieceTokenizer(words), seed=SEED)
    model.compile(tfde.adamw(decay_steps=10), chunk_size=chunk or None)
    rng = np.random.default_rng(SEED)
    keys = np.arange(1, batch + 1)
    data = {"candidate_keys": keys, "positive_keys": keys[:, None]}
    for side, longest in (("query", length // 2), ("document", length)):
        lengths = rng.integers(longest // 4, longest + 1, (batch, 1))
        data[f"{side}_token_ids"] = rng.integers(5, VOCABULARY, (batch, longest)).astype(np.int32)
        data[f"{side}_padding_mask"] = (np.arange(longest) < lengths).astype(np.int32)
    data = {name: tf.constant(array) for name, array in data.items()}
    train_step = tf.function(model.train_step)
    before = memory("self", "VmRSS")
    train_step(data)
    start = time.perf_counter()
    train_step(data)
    seconds = time.perf_counter() - start
    peak = memory("self", "VmHWM") - before
    print(json.dumps({"peak_bytes": peak, "step_s": round(seconds, 2)}))


def measure(batch: int, length: int, chunk: int, limit: float) -> dict:
    """Returns a point, measured in a process that is stopped at the limit."""
    command = [sys.executable, __file__, "--step", *map(str, (batch, length, chunk))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        if memory(process.pid, "VmRSS") > limit * GIB:
            process.kill()
        time.sleep(0.02)
    output = process.communicate()[0]
    point: dict = {"batch": batch, "length": length, "chunk": chunk}
    if process.returncode == -9:
        return {**point, "peak_bytes": None, "step_s": None}
    if process.returncode:
        raise RuntimeError(f"the process of {point} ended with {process.returncode}")
    return {**point, **json.loads(output.splitlines()[-1])}


def draw(points: list[dict], figure: Path, limit: float) -> None:
    """Draws memory by batch, a line for each chunk."""
    from matplotlib.figure import Figure

    by_chunk = {point["chunk"]: [] for point in points}
    for point in points:
        by_chunk[point["chunk"]].append(point)
    by_chunk = {chunk: line for chunk, line in by_chunk.items() if len(line) > 2}
    length = max(
        set.intersection(*({point["length"] for point in line} for line in by_chunk.values()))
    )
    canvas = Figure(figsize=(6.4, 4), layout="constrained")
    axes = canvas.subplots()
    for chunk, line in sorted(by_chunk.items()):
        chosen = sorted((p for p in line if p["length"] == length), key=lambda p: p["batch"])
        label = f"in chunks of {chunk}" if chunk else "whole batch at once"
        known = [p for p in chosen if p["peak_bytes"]]
        drawn = axes.plot(
            [p["batch"] for p in known],
            [p["peak_bytes"] / GIB for p in known],
            marker="o",
            label=label,
        )
        over = [p["batch"] for p in chosen if not p["peak_bytes"]]
        axes.plot(over, [limit] * len(over), "x", color=drawn[0].get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches := sorted({point["batch"] for point in points}), map(str, batches))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("pairs a batch")
    axes.set_ylabel("memory of a training step, GiB")
    axes.set_title(
        f"BERT, {LAYERS} layers of {HIDDEN}, {length // 2} + {length} tokens"
        f" (x: over {limit:g} GiB)",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)


def main() -> None:
    """Measures the points asked for, and draws them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="*", default=[128, 512, 2048, 8192])
    parser.add_argument("--chunks", type=int, nargs="*", default=[0, 128])
    parser.add_argument("--lengths", type=int, nargs="*", default=[32])
    parser.add_argument("--limit-gib", type=float, default=8.0)
    parser.add_argument("--points", type=Path, help="JSON of an earlier run, read and rewritten")
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    parser.add_argument("--step", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        step(*args.step)
        return
    points = []
    if args.points and args.points.exists():
        points = json.loads(args.points.read_text())["points"]
    asked = list(itertools.product(args.batches, args.lengths, args.chunks))
    points = [p for p in points if (p["batch"], p["length"], p["chunk"]) not in asked]
    for number, (batch, length, chunk) in enumerate(asked):
        points.append(measure(batch, length, chunk, args.limit_gib))
        print(f"{number + 1}/{len(asked)}", points[-1], file=sys.stderr)
    result = {
        "seed": SEED,
        "model": {"layers": LAYERS, "hidden_dim": HIDDEN, "vocabulary_size": VOCABULARY},
        "limit_gib": args.limit_gib,
        "points": sorted(points, key=lambda p: (p["chunk"], p["length"], p["batch"])),
        **side_by_side.machine("tensorflow", "keras"),
    }
    text = json.dumps(result, indent=2)
    if args.points:
        args.points.write_text(text + "\n")
    if args.figure:
        draw(points, args.figure, args.limit_gib)
    print(text)


if __name__ == "__main__":
    main()
