"""Li et al. 2021, Tables 1 to 3, at the size of this machine: who matches how well, at what cost?

    python benchmarks/matching_study.py --output studies/matching [--only sick_nli/siamese ...]
        [--starts minilm mlm] [--seeds 1 2 3] [--epochs 3] [--learning-rate 3e-4]
        [--virt-weight 1.0] [--fusion concat] [--jobs 1]

Every model starts from the first three layers of all-MiniLM-L6-v2 (TFDE_MINILM), a sentence
encoder; or from these after they went on as a masked language model (`mlm`, made first, by
benchmarks/matching_start.yaml). It is trained by `tfde train-matcher` on at most 4,000 pairs of
TFDE_DATA; the teacher is a cross-encoder of the same start, fine-tuned on the same pairs.

The baselines are the paper's: the vectors of a pair are concatenated (`--fusion difference` for
what the package does unless told); DeFormer learns from labels, logits (KL at temperature 2) and
the hidden states of its upper layer; DiPair's upper layer is the encoder's own, and it learns from
logits; Adam has no clipping and epsilon 1e-8. Q2P is made as the paper's: SQuAD's questions with
their sentences, and a sentence drawn from BM25's 100 best. Three seeds for every model with and
without VIRT, one for the cross-encoder; rte and stsb once, too small to rank anything by.

A cell is a directory under `--output`: what is finished is not done again, what was interrupted
goes on. Cells in a file of `--done` count as finished; a teacher among them is trained again where
it has to teach. `--tables` prints the tables of what is there, as Markdown, without training, and
writes `cells.jsonl`, a line a finished cell; `--costs` measures, on two quiet cores, what a pair
costs online: operations counted from the graph, and milliseconds from text to score with the second
texts stored.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from matching_tables import KINDS, MEASURES, NAMES, SMALL, cost_table, tables

PAIRS, HELD_OUT = 4000, 500
LAYERS = 3
STARTS = ("minilm", "mlm")
TASKS = ("sick_nli", "mrpc", "qnli_part", "q2p", *SMALL)
# What the papers' baselines learn from the teacher.
OWN_TEACHING: dict[str, dict[str, Any]] = {
    "deformer": {"logit_weight": 1.0, "temperature": 2.0, "hidden_weight": 1.0},
    "dipair": {"logit_weight": 1.0},
}


class Task(NamedTuple):
    """Pairs, what they are judged by, and how long their texts may be."""

    objective: str
    first: int
    second: int
    data: dict[str, Any]
    validation: dict[str, Any]
    test: dict[str, Any]


class Cell(NamedTuple):
    """One model of one task."""

    task: str
    kind: str
    virt: bool
    seed: int
    start: str = "minilm"

    @property
    def name(self) -> str:
        more = "_virt" * self.virt + "_mlm" * (self.start == "mlm")
        return f"{self.task}/{self.kind}{more}_{self.seed}"

    @property
    def teacher(self) -> Cell:
        return Cell(self.task, "cross_encoder", False, 1, self.start)


def tasks(work: Path) -> dict[str, Task]:
    data = Path(os.environ["TFDE_DATA"])

    def folder(name: str, objective: str, first: int, second: int) -> Task:
        path = str(data / name)
        parts: list[dict[str, Any]] = [
            {"data": path, "split": split} for split in ("train", "dev", "test")
        ]
        if not list((data / name).glob("dev.tsv*")):  # a tenth of the training pairs
            held = {"data": path, "split": "train", "held_out": 0.1}
            parts[:2] = [held, {**held, "part": "held_out"}]
        parts[0] = {**parts[0], "limit": PAIRS}
        parts[1] = {**parts[1], "limit": HELD_OUT}
        return Task(objective, first, second, *parts)

    def mined(split: str, limit: int) -> dict[str, Any]:
        path = str(work / "q2p" / f"{split}.jsonl.gz")
        return {"data": path, "dataset": str(data / "squad_sent"), "limit": limit}

    q2p = mined("train", PAIRS)
    return {
        "sick_nli": folder("sick_nli", "classification", 40, 40),
        "mrpc": folder("mrpc", "classification", 64, 64),
        "qnli_part": folder("qnli_part", "classification", 40, 80),
        "q2p": Task(
            "binary", 40, 80,
            {**q2p, "held_out": 0.1},
            {**q2p, "held_out": 0.1, "part": "held_out", "limit": HELD_OUT},
            mined("test", 4000),
        ),
        "rte": folder("rte", "classification", 128, 40),
        "stsb": folder("stsb", "regression", 48, 48),
    }  # fmt: skip


def cells(seeds: list[int], starts: Sequence[str] = STARTS) -> Iterator[Cell]:
    """Yields teachers first, and one seed of all before the next."""
    ranked = [task for task in TASKS if task not in SMALL]
    for seed in seeds:
        for start, task in itertools.product(starts, ranked if seed != seeds[0] else TASKS):
            if seed == seeds[0]:
                yield Cell(task, "cross_encoder", False, 1, start)
            for kind in KINDS:
                yield Cell(task, kind, False, seed, start)
                if task not in SMALL or kind == "virt_encoder":
                    yield Cell(task, kind, True, seed, start)


def mine(work: Path) -> None:
    """Makes Q2P's pair files, where they are not there yet."""
    dataset = Path(os.environ["TFDE_DATA"]) / "squad_sent"
    for split in ("train", "test"):
        output = work / "q2p" / f"{split}.jsonl.gz"
        if not output.exists():
            output.parent.mkdir(parents=True, exist_ok=True)
            tfde(
                "mine-negatives", "--dataset", dataset, "--split", split, "--from", "bm25",
                "--max_rank", 100, "--choice", "random", "--count", 1, "--output", output,
            )  # fmt: skip


def tfde(*arguments: object, log: Path | None = None, threads: int | None = None) -> None:
    command = [sys.executable, "-m", "tfde.cli.main", *map(str, arguments)]
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS") if threads else ()
    env = os.environ | dict.fromkeys(names, str(threads))
    with open(log or os.devnull, "a") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"matching_study: {shlex.join(command)} failed; see {log}")


def recipe(cell: Cell, task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the run of a cell."""
    run: dict[str, Any] = {
        "seed": cell.seed,
        "model": {
            "kind": cell.kind,
            "backbone": start_of(cell.start, args),
            "num_layers": LAYERS,
            "first_max_length_tokens": task.first,
            "second_max_length_tokens": task.second,
        },
        "data": task.data,
        "validation": task.validation,
        "test": task.test,
        "objective": task.objective,
        "epochs": args.epochs,
        "batch_size": 28,
        "precision": args.precision,
        "optimizer": {
            "name": "adamw",
            "learning_rate": args.learning_rate,
            "weight_decay": 0.0,
            "epsilon": 1e-8,
            "clip_norm": None,
        },
    }
    if cell.kind == "cross_encoder":
        run["model"]["pooling"] = "mean"
        return run
    run["model"]["options"] = {"fusion": args.fusion}
    teaching = dict(OWN_TEACHING.get(cell.kind, {}))
    if teaching and task.objective == "regression":
        teaching["logit_loss"] = "mse"
    if cell.virt:
        teaching["virt_weight"] = args.virt_weight
    if teaching:
        run["teaching"] = {
            "models": [str(args.output / cell.teacher.name / "best_model")], **teaching
        }  # fmt: skip
    return run


def start_of(start: str, args: argparse.Namespace) -> str:
    """Returns what a model starts from."""
    return "${TFDE_MINILM}" if start == "minilm" else str(args.output / "start" / "model")


def make_start(args: argparse.Namespace) -> None:
    """Pre-trains the start that is no sentence encoder, or goes on with it."""
    folder = args.output / "start"
    if not (folder / "model").exists():
        recipe_file = Path(__file__).with_name("matching_start.yaml")
        args.output.mkdir(parents=True, exist_ok=True)
        tfde("train", "--run", recipe_file, "--output", folder, log=args.output / "start.log")


def train(args: argparse.Namespace) -> None:
    """Trains every cell that is not finished, teachers first."""
    known = tasks(args.output)
    done = recorded(args)
    chosen = [
        cell
        for cell in cells(args.seeds, args.starts)
        if cell not in done and (not args.only or cell.name.startswith(tuple(args.only)))
    ]
    taught = {cell.teacher for cell in chosen if cell.virt or cell.kind in OWN_TEACHING}
    wanted = [*sorted(taught - set(chosen)), *chosen]
    if any(cell.task == "q2p" for cell in wanted):
        mine(args.output)
    if any(cell.start == "mlm" for cell in wanted):
        make_start(args)
    threads = max(1, (os.cpu_count() or 1) // args.jobs)

    def train_cell(cell: Cell) -> None:
        folder = args.output / cell.name
        path = folder.with_suffix(".json")  # JSON is YAML too
        wanted_recipe = json.dumps(recipe(cell, known[cell.task], args), indent=1)
        if (folder / "measures.json").exists():
            if path.read_text() != wanted_recipe:
                raise SystemExit(f"matching_study: {path} is of other settings; remove {folder}")
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted_recipe)
        start = time.monotonic()
        log = folder.with_suffix(".log")
        tfde("train-matcher", "--run", path, "--output", folder, log=log, threads=threads)
        measures = json.loads((folder / "measures.json").read_text())
        measure = MEASURES[cell.task][0]
        took = time.monotonic() - start
        print(f"{cell.name}: {measure} {measures[measure]:.4f} ({took:.0f} s)", flush=True)

    teachers = [cell for cell in wanted if cell.kind == "cross_encoder"]
    for part in (teachers, [cell for cell in wanted if cell not in teachers]):
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(train_cell, part))


def recorded(args: argparse.Namespace) -> dict[Cell, dict[str, Any]]:
    """Returns the cells of earlier runs, as their `cells.jsonl` has them."""
    lines = args.done.read_text("utf-8").splitlines() if args.done else []
    records = map(json.loads, lines)
    # Records of 0.1.0 know no start.
    return {
        Cell(*(record[name] for name in Cell._fields if name in record)): record
        for record in records
    }


def read_cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the settings and measures of every finished cell, and writes them to a file."""
    done = recorded(args)
    seeds = {int(path.stem.rpartition("_")[2]) for path in args.output.glob("*/*_*.json")}
    seeds |= {cell.seed for cell in done}
    records = []
    for cell in cells(sorted(seeds)):
        folder = args.output / cell.name
        if cell in done:
            records.append(done[cell])
        elif (folder / "measures.json").exists():
            run = json.loads(folder.with_suffix(".json").read_text())
            settings = {name: run.get(name) for name in ("epochs", "batch_size", "precision")}
            settings["learning_rate"] = run["optimizer"]["learning_rate"]
            settings["virt_weight"] = run.get("teaching", {}).get("virt_weight", 0.0)
            settings["fusion"] = run["model"].get("options", {}).get("fusion")
            measures = json.loads((folder / "measures.json").read_text())
            records.append({**cell._asdict(), **settings, "test": measures})
    lines = [json.dumps(record) + "\n" for record in records]
    (args.output / "cells.jsonl").write_text("".join(lines))
    return records


def costs(args: argparse.Namespace) -> None:
    """Measures what a pair of Q2P costs online, second texts stored; writes `costs.json`."""
    import numpy as np

    import tfde
    from tfde.data.pairs.read_pairs import read_pairs

    mine(args.output)
    task, path = tasks(args.output)["q2p"], os.environ["TFDE_MINILM"]
    table = read_pairs(args.output / "q2p" / "test.jsonl.gz", dataset=task.test["dataset"])
    pairs = table[:: len(table) // 100][:100]
    queries, documents = [x.query.text for x in pairs], [x.positive for x in pairs]
    start: dict[str, Any] = {"num_labels": 1, "num_layers": LAYERS, "seed": 1}
    found: dict[str, dict[str, float]] = {}
    for kind, name in NAMES.items():
        model: Any
        if kind == "cross_encoder":
            limits = tfde.PairTextConfig(task.first + task.second)
            model = tfde.CrossEncoder.from_backbone(path, pooling="mean", text=limits, **start)
            score, seconds, size = model.score, documents, 0.0
        else:
            text = tfde.TextConfig(task.first, task.second)
            options = {"fusion": args.fusion} if kind in KINDS else {}
            model = tfde.Matcher.from_backbone(path, kind=kind, text=text, **options, **start)
            stored = model.store(documents, dtype="float16")
            score, seconds = functools.partial(model.score_stored, stored=stored), stored.doc_ids
            size = np.diff(stored.offsets).mean() * stored.vectors[0].nbytes / 1000
        few = list(zip(queries, seconds, strict=True))[:25]
        many = [(queries[0], second) for second in seconds]
        flops = [
            online_flops(model, *pair) for pair in zip(queries[:5], documents[:5], strict=True)
        ]
        found[kind] = {
            "mflops": statistics.mean(flops) / 1e6,
            "one_ms": milliseconds(functools.partial(score, batch_size=1), few) / len(few),
            "hundred_ms": milliseconds(functools.partial(score, batch_size=100), many),
            "stored_kb": float(size),
        }
        print(f"{name}: {found[kind]}", flush=True)
    (args.output / "costs.json").write_text(json.dumps(found, indent=1))


def online_flops(model: Any, query: str, document: Any) -> int:
    """Returns what is computed of a pair when the query comes, the document's part stored."""
    import tensorflow as tf
    from flops import count_flops

    from tfde.matching.networks import meeting, tokens_of

    inputs = model.prepare(*(tf.constant([x]) for x in (query, document.title, document.text)))
    if not hasattr(model, "networks"):
        return count_flops(model.scorer, inputs)
    encoders = model.networks.encoders
    sides = {side: tokens_of(side, inputs) for side in encoders}
    met = meeting({side: encoders[side](tokens) for side, tokens in sides.items()})
    first = count_flops(encoders["first"], sides["first"])
    return first + count_flops(model.networks.interaction, met)


def milliseconds(score: Callable[[Any], object], pairs: list[Any]) -> float:
    """Returns the median of seven calls, after two."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        score(pairs)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the cells")
    parser.add_argument("--only", nargs="+", help="cells whose names begin so, such as mrpc/virt")
    parser.add_argument("--done", type=Path, help="cells.jsonl of an earlier run")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--fusion", default="concat", choices=["concat", "difference"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--virt-weight", type=float, default=1.0, help="alpha")
    parser.add_argument("--precision", default="float32", help="or mixed_bfloat16")
    parser.add_argument("--jobs", type=int, default=1, help="cells trained at the same time")
    parser.add_argument("--tables", action="store_true", help="print the tables, train nothing")
    parser.add_argument("--costs", action="store_true", help="measure costs, train nothing")
    args = parser.parse_args()
    for name in () if args.tables else ("TFDE_DATA", "TFDE_MINILM"):
        if name not in os.environ:
            parser.error(f"the environment variable {name} is not set")
    if args.costs:
        costs(args)
    elif not args.tables:
        train(args)
    costs_file = args.output / "costs.json"
    if costs_file.exists():
        print(f"Costs\n\n{cost_table(json.loads(costs_file.read_text()))}\n")
    for title, table in tables(read_cells(args)).items():
        print(f"{title}\n\n{table}\n")


if __name__ == "__main__":
    main()
