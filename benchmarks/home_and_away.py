"""What does a training win at home, what does it lose elsewhere, and what holds it back?

    python benchmarks/home_and_away.py --output studies/home_and_away [--home squad_sent]
        [--seeds 17] [--ways plain anchor ...] [--steps 300] [--figure gains.png] [--table]

Each way trains all-MiniLM-L6-v2 (TFDE_MINILM) on the `train` split of --home (a data set of
TFDE_DATA) by a recipe that differs in one field: the same batches of 64 pairs, cut at 32 and 64
tokens, in use at the start's own lengths. Then the model and its means with the start (--shares of
the start) are measured at home and on data sets that no training here sees: at most 250 test
queries, 1,000 documents. --home is measured on multireqa_squad for squad_sent, else on its own
test split. nDCG@10, searched exactly.

A line of HOME.jsonl is a way, a seed and a share. What is there is not done again, what was
interrupted goes on; other --steps or --precision need another --output. --table prints gains over
the start as Markdown; --figure draws a point for each line, home against the mean of the others,
and needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

AWAY = ("scifact", "covid_faq", "covidqa", "pubmedqa", "stackexchange_bev")
MEASURE = "nDCG@10"
RATE = 5e-5
MINED = "mined.jsonl.gz"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rate / 5": {"optimizer": {"learning_rate": RATE / 5}},
    "anchor, scores": {"anchor": {"embedding_weight": 0.0, "score_weight": 1.0}},
    "anchor, embeddings": {"anchor": {"embedding_weight": 5.0}},
    "guide": {"guide": {}},
    "guide and anchor": {
        "guide": {},
        "anchor": {"embedding_weight": 0.0, "score_weight": 1.0},
    },
    "lora": {"lora": {"rank": 8}, "optimizer": {"learning_rate": 10 * RATE}},
    "pages too": {"homogeneous": True, "mixture": "pages"},
    "start_decay": {"optimizer": {"start_decay": 300.0}},
    "layer_decay": {"optimizer": {"layer_decay": 0.6}},
    "half frozen": {"freeze": ["token_embedder"], "freeze_layers": 3},
    "topics": {"topic_size": 256},
    "topics, rate / 5": {"topic_size": 256, "optimizer": {"learning_rate": RATE / 5}},
    "topics, start_decay": {"topic_size": 256, "optimizer": {"start_decay": 300.0}},
    "mined": {"data": MINED, "negatives_per_query": 1},
    "train --table": {},  # the recipe that is written for a table
}
TABLE_ROWS = 3000  # of such a table


def mine(args: argparse.Namespace) -> None:
    """Mines four negatives a pair by the start, of its 50 best; what is mined stays."""
    home = Path(os.environ["TFDE_DATA"]) / args.home
    command = [sys.executable, "-m", "tfde.cli.main", "mine-negatives", "--dataset", str(home)]
    command += ["--model", os.environ["TFDE_MINILM"], "--max_rank", "50", "--choice", "random"]
    command += ["--relative_margin", "0.05", "--output", str(args.output / args.home / MINED)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def recipe(way: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the run of a way."""
    home = str(Path(os.environ["TFDE_DATA"]) / args.home)
    if way == "train --table":
        return recipe_of_table(home, seed, args.precision)
    pages = str(Path(os.environ["TFDE_DATA"]) / "wikispeedia" / "pages.jsonl.gz")
    fields = {"data": home, **WAYS[way]}
    if fields["data"] == MINED:
        fields |= {"data": str(args.output / args.home / MINED), "dataset": home}
    if fields.get("mixture") == "pages":
        del fields["data"]
        fields["mixture"] = [{"data": home}, {"pages": pages, "tasks": {"ict": 1}}]
    optimizer = {"name": "adamw", "learning_rate": RATE, "warmup_steps": args.steps // 10}
    return {
        "seed": seed,
        "precision": args.precision,
        "model": {"backbone": os.environ["TFDE_MINILM"], "dropout": 0.0},
        "stages": {
            "finetune": {
                "steps": args.steps,
                "batch_size": 64,
                "temperature": 0.05,
                "bidirectional": True,
                "query_max_length_tokens": 32,
                "document_max_length_tokens": 64,
                "checkpoint_every_steps": 100,
                **fields,
                "optimizer": {**optimizer, **fields.get("optimizer", {})},
            }
        },
    }


def recipe_of_table(home: str, seed: int, precision: str) -> dict[str, Any]:
    """Returns what `tfde train --table` writes, for the first rows of a home."""
    from tfde.data.pairs.read_pairs import read_pairs
    from tfde.training.table_run import describe_run

    pairs = len(read_pairs(home, limit=TABLE_ROWS))
    run = describe_run(home, os.environ["TFDE_MINILM"], {}, pairs=pairs)
    run["stages"]["finetune"]["limit"] = pairs
    return {**run, "seed": seed, "precision": precision}


def train(way: str, seed: int, args: argparse.Namespace) -> Path:
    """Trains a way in a process of its own, or finds it trained; returns its model."""
    folder = args.output / args.home / f"{way.replace(' ', '_').replace('/', 'by')}_{seed}"
    path = folder.with_suffix(".json")  # JSON is YAML too
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        if WAYS[way].get("data") == MINED:
            mine(args)
        path.write_text(json.dumps(recipe(way, seed, args), indent=1))
        command = [sys.executable, "-m", "tfde.cli.main", "train", "--run", str(path)]
        with folder.with_suffix(".log").open("a") as log:
            command += ["--output", str(folder)]
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise SystemExit(f"home_and_away: {way} failed; see {log.name}")
    best = folder / "best_model"  # where the recipe has a validation
    return best if best.exists() else folder / "model"


def measured(model: Any, home: str) -> dict[str, float]:
    """Returns data set -> nDCG@10."""
    import tfde

    found = {}
    for name in dict.fromkeys(("multireqa_squad" if home == "squad_sent" else home, *AWAY)):
        dataset = str(Path(os.environ["TFDE_DATA"]) / name)
        config = tfde.ValidationConfig(
            dataset, split="test", max_queries=250, max_documents=1000, measures=(MEASURE,)
        )
        (found[name],) = tfde.RetrievalValidation(config)(model).values()
    return found


def missing(
    args: argparse.Namespace, known: list[dict[str, Any]]
) -> Iterator[tuple[str, int, float]]:
    """Yields way, seed and share of what is not measured yet; the start is all of it."""
    done = {(line["way"], line["seed"], line["share"]) for line in known}
    wanted = [("start", 0, 1.0)]
    for seed in args.seeds:
        wanted += [(way, seed, share) for way in args.ways for share in (0.0, *args.shares)]
    return (one for one in wanted if one not in done)


def run(args: argparse.Namespace, results: Path) -> None:
    """Measures what is not there yet."""
    import tfde

    known = read(results)
    for line in known:
        other = {name: line[name] for name in settings(args)}
        if other != settings(args):
            raise SystemExit(f"{results}: is of {other}; choose another --output")
    for way, seed, share in missing(args, known):
        start = os.environ["TFDE_MINILM"]
        if way == "start":
            model = tfde.DualEncoder.load(start, dtype=args.precision)
        else:
            path = train(way, seed, args)
            if share:
                model = tfde.average_models([path, start], [1 - share, share])
                path = path.parent / "mean"
                model.save_to_preset(path)
            model = tfde.DualEncoder.load(path, dtype=args.precision)
        line = {"way": way, "seed": seed, "share": share, **settings(args)}
        line["measures"] = measured(model, args.home)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what all lines of a file have in common."""
    return {"steps": args.steps, "precision": args.precision, "tensorflow": version("tensorflow")}


def read(results: Path) -> list[dict[str, Any]]:
    """Returns the lines so far."""
    return [json.loads(x) for x in results.read_text().splitlines()] if results.exists() else []


def gains(lines: list[dict[str, Any]]) -> dict[tuple[str, float], dict[str, Any]]:
    """Returns (way, share) -> gain over the start by data set, `home` first, means over seeds."""
    start = next(line["measures"] for line in lines if line["way"] == "start")
    first = next(iter(start))
    found: dict[tuple[str, float], dict[str, Any]] = {}
    for line in lines:
        place = found.setdefault((line["way"], line["share"]), {"seeds": 0, "home": [], "away": []})
        gain = {name: value - start[name] for name, value in line["measures"].items()}
        place["seeds"] += 1
        place["home"].append(gain.pop(first))
        place["away"].append(statistics.mean(gain.values()))
        place["worst"] = min((*gain.items(), *place.get("worst_of", [])), key=lambda x: x[1])
        place["worst_of"] = [place["worst"]]
    return {
        key: {
            **place,
            "home": statistics.mean(place["home"]),
            "away": statistics.mean(place["away"]),
        }
        for key, place in found.items()
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Returns the gains as Markdown."""
    rows = [
        "| way | share of the start | seeds | home | away | worst away |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for (way, share), gain in gains(lines).items():
        name, value = gain["worst"]
        rows.append(
            f"| {way} | {share:g} | {gain['seeds']} | {gain['home']:+.4f} | {gain['away']:+.4f}"
            f" | {name} {value:+.4f} |"
        )
    return "\n".join(rows)


def draw(lines: list[dict[str, Any]], home: str, path: Path) -> None:
    """Draws home against away, a line for each way through its means with the start."""
    from matplotlib.figure import Figure

    figure = Figure((7, 5), layout="constrained")
    axes = figure.subplots()
    ways: dict[str, list[tuple[float, float, float]]] = {}
    for (way, share), gain in gains(lines).items():
        ways.setdefault(way, []).append((share, gain["home"], gain["away"]))
    for way, points in ways.items():
        _, x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", label=way)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel=f"{MEASURE} won at home ({home})", ylabel=f"{MEASURE} won away, mean of sets")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measures, then prints or draws what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--home", default="squad_sent", help="data set of TFDE_DATA to train on")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[17])
    parser.add_argument("--shares", type=float, nargs="*", default=[0.5])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--precision", default="mixed_bfloat16", help="or float32")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    results = args.output / f"{args.home}.jsonl"
    if not args.table:
        run(args, results)
    lines = read(results)
    print(table(lines))
    if args.figure is not None:
        draw(lines, args.home, args.figure)


if __name__ == "__main__":
    main()
