"""How good are models on sets that they were not trained on, beside BM25, and together with it?

    python benchmarks/zero_shot.py --output studies/zero_shot --model best=runs/best/best_model
        --model MiniLM=$TFDE_MINILM [--sets scifact medquad ...]

nDCG@10 and R@100 on the test splits of TFDE_DATA's sets, as BEIR reports them: all documents are
candidates, searched exactly, 100 a query; models read 256 tokens of each text, however long the
texts of their training were. SQuAD and Stack Exchange are left out, for
all-MiniLM-L6-v2 was trained on both. A hybrid is the fusion of a model's 100 best and BM25's by
reciprocal ranks (constant 60, fixed before looking). `zero_shot.jsonl` in the output holds what the
tables hold; with `--report` each set also gets the page of `tfde evaluate --report`, which says how
sure the differences are.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SETS = (
    "scifact",
    "medquad",
    "fairytaleqa",
    "covidqa",
    "covid_faq",
    "pubmedqa",
    "openstax_glossary",
)
MEASURES = ("nDCG@10", "R@100")
BM25 = "BM25"
LENGTHS = ("--query_max_length_tokens", 256, "--document_max_length_tokens", 256)


def tfde(*arguments: object) -> str:
    command = [sys.executable, "-m", "tfde.cli.main", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def measure(name: str, models: dict[str, str], output: Path, *, report: bool) -> list[dict]:
    """Returns a record for each system on a set."""
    dataset = Path(os.environ["TFDE_DATA"]) / name
    runs = output / "runs" / name
    shutil.rmtree(runs, ignore_errors=True)  # of other models, perhaps
    given = [f"--model={model}={path}" for model, path in models.items()]
    evaluate = ["evaluate", "--dataset", dataset, "--split", "test"]
    tfde(*evaluate, *given, *LENGTHS, "--bm25", "--save_runs", runs, "--measures", *MEASURES)
    numbered = sorted(runs.glob("[0-9]*.trec"), key=lambda run: int(run.name.partition("_")[0]))
    systems = dict(zip([*models, BM25], numbered, strict=True))  # in the order of the table
    for model in models:
        fused = runs / f"hybrid_{len(systems)}.trec"
        parts = [f"--run_file={systems[part]}" for part in (model, BM25)]
        tfde("fuse", *parts, "-k", 100, "--output", fused)
        systems[f"{model} + {BM25}"] = fused
    given = [f"--run_file={system}={path}" for system, path in systems.items()]
    page = ["--report", output / "reports" / name] if report else []
    answer = tfde(*evaluate, *given, "--measures", *MEASURES, "--json", *page)
    about = json.loads(answer)
    return [
        {"set": name, "queries": about["queries"], "system": row["name"], **row["measures"]}
        for row in about["rows"]
    ]


def table(records: list[dict], value: str) -> str:
    """Returns a Markdown table of a measure: a row a set, a column a system, and the means."""
    systems = list(dict.fromkeys(record["system"] for record in records))
    found = {(record["set"], record["system"]): record[value] for record in records}
    sets = list(dict.fromkeys(record["set"] for record in records))
    lines = [f"| {value} | {' | '.join(systems)} |", f"|---|{'---:|' * len(systems)}"]
    for name in sets:
        cells = (f"{found[name, system]:.4f}" for system in systems)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = (sum(found[name, system] for name in sets) / len(sets) for system in systems)
    lines.append(f"| mean | {' | '.join(f'{mean:.4f}' for mean in means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of runs and results")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--report", action="store_true", help="also a page for each set")
    args = parser.parse_args()
    if not all("=" in model for model in args.model):
        parser.error(f"--model must be NAME=PATH. Received: {' '.join(args.model)}")
    models = dict(model.split("=", 1) for model in args.model)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "zero_shot.jsonl"
    records = []
    for name in args.sets:
        records += measure(name, models, args.output, report=args.report)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    print("\n\n".join(table(records, value) for value in MEASURES))


if __name__ == "__main__":
    main()
