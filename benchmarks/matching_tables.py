"""The tables of benchmarks/matching_study.py, from what its cells have measured."""

from __future__ import annotations

import statistics
from typing import Any

# What a set is judged by, in the order of the columns; GLUE has both for MRPC.
MEASURES = {
    "sick_nli": ("accuracy",),
    "mrpc": ("accuracy", "F1"),
    "qnli_part": ("accuracy",),
    "q2p": ("AUC",),
    "rte": ("accuracy",),
    "stsb": ("spearman",),
}
SMALL = ("rte", "stsb")  # trained once: too small to rank models by
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
    """Returns the paper's three tables of what is finished, by their names.

    Sets that are too small to rank models by stand in Table 1 alone.
    """
    known = [
        (task, measure)
        for task, measures in MEASURES.items()
        for measure in measures
        if any(record["task"] == task and measure in record["test"] for record in records)
    ]
    ranked = [(task, measure) for task, measure in known if task not in SMALL]
    first = [("cross-encoder", "cross_encoder", False)]
    first += [(NAMES[kind], kind, False) for kind in KINDS[:-1]]
    first += [("VIRT-encoder", "virt_encoder", True)]
    second = [
        ("VIRT-encoder", "virt_encoder", True),
        ("without VIRT", "virt_encoder", False),
        ("without VIRT-adapted interaction", "siamese", True),
    ]
    third = [
        (f"{NAMES[kind]}{' with VIRT' * virt}", kind, virt)
        for kind in KINDS
        for virt in (False, True)
    ]
    starts: dict[str, list[dict[str, Any]]] = {}
    for record in records:  # those of 0.1.0 know one start
        starts.setdefault(record.get("start", "minilm"), []).append(record)
    return {
        f"Table {number}{'' if start == 'minilm' else f', start {start}'}": _table(part, *columns)
        for start, part in starts.items()
        for number, columns in enumerate([(known, first), (ranked, second), (ranked, third)], 1)
    }


def _table(
    records: list[dict[str, Any]],
    known: list[tuple[str, str]],
    models: list[tuple[str, str, bool]],
) -> str:
    """Returns a row a model (name, kind, with VIRT) and a column a task's measure."""
    heads = [f"{task}{'*' * (task in SMALL)} ({measure})" for task, measure in known]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for name, *model in models:
        values: dict[tuple[str, str], list[float]] = {column: [] for column in known}
        for record in records:
            if [record["kind"], record["virt"]] == model:
                for measure in MEASURES[record["task"]]:
                    if (record["task"], measure) in values and measure in record["test"]:
                        values[record["task"], measure].append(record["test"][measure])
        lines.append(f"| {name} | {' | '.join(map(shown, values.values()))} |")
    return "\n".join(lines)


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
