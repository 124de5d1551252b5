"""The tables of benchmarks/matching_study.py, from what its cells have measured."""

from __future__ import annotations

import statistics
from typing import Any

# What a set is judged by, in the order of the columns.
MEASURES = {
    "sick_nli": "accuracy",
    "mrpc": "accuracy",
    "qnli_part": "accuracy",
    "q2p": "AUC",
    "rte": "accuracy",
    "stsb": "spearman",
}
KINDS = ("siamese", "deformer", "dipair", "poly_encoder", "virt_encoder")
NAMES = {
    "cross_encoder": "cross-encoder",
    "siamese": "Siamese",
    "deformer": "DeFormer (2+1)",
    "dipair": "DiPair",
    "poly_encoder": "Poly-encoder",
    "virt_encoder": "VIRT-encoder",
    "late_interaction": "late interaction",
}


def shown(values: list[float]) -> str:
    """Returns mean and spread in points, and of how many seeds."""
    if not values:
        return "-"
    mean = f"{100 * statistics.mean(values):.1f}"
    return (
        mean
        if len(values) == 1
        else f"{mean} ± {100 * statistics.stdev(values):.1f} ({len(values)})"
    )


def tables(records: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the paper's three tables of what is finished, by their names."""
    done = {record["task"] for record in records}
    known = [task for task in MEASURES if task in done]
    heads = [f"{task} ({MEASURES[task]})" for task in known]
    head = f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}"

    def row(name: str, kind: str, virt: bool) -> str:
        values: dict[str, list[float]] = {task: [] for task in known}
        for record in records:
            if (record["kind"], record["virt"]) == (kind, virt):
                values[record["task"]].append(record["test"][MEASURES[record["task"]]])
        return f"| {name} | {' | '.join(map(shown, values.values()))} |"

    first = [row(NAMES["cross_encoder"], "cross_encoder", False)]
    first += [row(NAMES[kind], kind, False) for kind in KINDS[:-1]]
    first += [row("VIRT-encoder", "virt_encoder", True)]
    second = [
        row("VIRT-encoder", "virt_encoder", True),
        row("without VIRT", "virt_encoder", False),
        row("without VIRT-adapted interaction", "siamese", True),
    ]
    third = [
        row(f"{NAMES[kind]}{' with VIRT' * virt}", kind, virt)
        for kind in KINDS
        for virt in (False, True)
    ]
    return {
        f"Table {number}": "\n".join([head, *rows])
        for number, rows in enumerate((first, second, third), start=1)
    }


def cost_table(costs: dict[str, dict[str, float]]) -> str:
    """Returns what a pair costs, a row a kind.

    Args:
        costs: Kind -> `mflops`, `one_ms`, `hundred_ms`, `stored_kb`.
    """
    lines = [
        "| | MFLOPs a pair | one pair, ms | a query and 100 texts, ms | stored, kB a text |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, cost in costs.items():
        stored = f"{cost['stored_kb']:.1f}" if cost["stored_kb"] else "-"
        lines.append(
            f"| {NAMES[kind]} | {cost['mflops']:.0f} | {cost['one_ms']:.1f}"
            f" | {cost['hundred_ms']:.0f} | {stored} |"
        )
    return "\n".join(lines)
