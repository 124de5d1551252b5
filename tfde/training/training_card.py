"""How the models of a run were trained, written into their cards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfde.towers.model_card import add_training
from tfde.training.callbacks import BEST_MODEL
from tfde.training.run_record import HISTORY_FILE, RUN_FILE

_DIGITS = 12  # of a checksum
# Where null is not the default, it says something: no clipping, all queries, all documents.
_NULL_SAYS = {"clip_norm", "max_queries", "max_documents"}


def write_training_cards(
    output: Path,
    *,
    command: str,
    leading: str | None,
    stages: Collection[str] | None = None,
    tested: Mapping[str, Any] | None = None,
) -> None:
    """Puts recipe, data, versions and measures into the cards of `model/` and `best_model/`.

    Args:
        output: Directory of a run that is finished.
        command: What the run was started by, such as `tfde train`.
        leading: The measure that chose the best model; `None` where nothing was validated.
        stages: Those of whose models the best was kept; `None` for all.
        tested: Measures of the kept model on the test data.
    """
    record = json.loads((output / RUN_FILE).read_text("utf-8"))
    history, validated = _history(output, leading, stages)
    best = _best(validated, leading)
    kept = BEST_MODEL if (output / BEST_MODEL).exists() else "model"
    # What was measured before the last stage is nothing that `model/` has.
    own = [line for line in validated if "averaged" not in line]
    last = next((line for line in own[-1:] if line["stage"] == history[-1]["stage"]), None)
    for name, line in (("model", last), (BEST_MODEL, best)):
        if (output / name).exists():
            measured = tested if name == kept else None
            add_training(
                output / name,
                _training(record, command, line, measured),
                starts=_starts(record["run"]),
                datasets=_datasets(record["run"]),
                measured=_measured(line, measured),
            )


def format_gains(output: Path, *, leading: str, stages: Collection[str]) -> str:
    """Returns a table of what the best model has won and lost beside the start.

    Args:
        output: Directory of a run that is finished.
        leading: The measure that chose the best model.
        stages: Those of whose models the best was kept.

    Returns:
        "" where the start was not measured.
    """
    _, validated = _history(output, leading, stages)
    start, best = validated[0], _best(validated, leading)
    if start["step"] or best is None:
        return ""
    names = list(_numbers(start))
    width = max(map(len, names))
    lines = [f"{'':{width}}   start    best   ({_place(best)})"]
    lines += [
        f"{name:{width}}  {start[name]:.4f}  {best[name]:.4f}  {best[name] - start[name]:+.4f}"
        for name in names
    ]
    return "\n".join(lines)


def _history(
    output: Path, leading: str | None, stages: Collection[str] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns all lines of a run's history, and those of validations that chose the best model."""
    text = (output / HISTORY_FILE).read_text("utf-8")
    history = [json.loads(line) for line in text.splitlines()]
    validated = [
        line for line in history if leading in line and (stages is None or line["stage"] in stages)
    ]
    return history, validated


def _best(validated: list[dict[str, Any]], leading: str | None) -> dict[str, Any] | None:
    if any("kept" not in line for line in validated):  # of a version that kept the highest
        allowed = (line for line in validated if "harm" not in line)
        return max(allowed, key=lambda line: line[str(leading)], default=None)
    return next((line for line in reversed(validated) if line["kept"]), None)


def _place(validated: Mapping[str, Any]) -> str:
    averaged = f", averaged {validated['averaged']}" if "averaged" in validated else ""
    return f"step {validated['step']} of stage {validated['stage']}{averaged}"


def _training(
    record: Mapping[str, Any],
    command: str,
    validated: Mapping[str, Any] | None,
    tested: Mapping[str, Any] | None,
) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    recipe = yaml.safe_dump(_said(record["run"]), sort_keys=False, allow_unicode=True)
    lines = [f"By `{command}` ({versions}), with this recipe:", "```yaml", recipe.rstrip(), "```"]
    lines += ["", "Data and checkpoints, by the first digits of their sha256:"]
    for path, sums in record["data"].items():
        files = sums if isinstance(sums, dict) else {"": sums}
        shown = ", ".join(f"{name} {value[:_DIGITS]}".strip() for name, value in files.items())
        lines.append(f"- `{path}`: {shown}")
    if validated is not None:
        on = validated["validated_on"]
        where = f"On the validation data ({on}), at {_place(validated)}"
        lines += ["", f"{where}: {_values(validated)}."]
        if not validated["step"] and "averaged" not in validated:
            lines += ["", "No training is in these weights: none was better than the start."]
    if tested is not None:
        lines += ["", f"On the test data: {_values(tested)}."]
    return "\n".join(lines)


def _starts(run: Mapping[str, Any]) -> list[str]:
    """Returns the checkpoints a run began with: one, two (queries, documents), or none."""
    backbone = run.get("model", {}).get("backbone")
    if not isinstance(backbone, str):
        return []
    return [backbone] if Path(backbone).exists() else [part.strip() for part in backbone.split(",")]


def _datasets(value: Any) -> list[str]:
    """Returns the names of what a run learned from, each once, in its order."""
    found: dict[str, None] = {}
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name == "data" and isinstance(one, str):
                found[Path(one).name] = None
            elif name not in ("validation", "test"):
                found |= dict.fromkeys(_datasets(one))
    elif isinstance(value, list):
        for one in value:
            found |= dict.fromkeys(_datasets(one))
    return list(found)


def _measured(
    validated: Mapping[str, Any] | None, tested: Mapping[str, Any] | None
) -> dict[str, dict[str, float]]:
    found = {}
    if validated is not None:
        found[str(validated["validated_on"])] = _numbers(validated)
    if tested is not None:
        found["test data"] = _numbers(tested)
    return found


def _said(value: Any) -> Any:
    """Returns a description without what it leaves open."""
    if isinstance(value, Mapping):
        found = {name: _said(one) for name, one in value.items()}
        return {
            name: one
            for name, one in found.items()
            if one not in (None, {}, []) or name in _NULL_SAYS
        }
    return [_said(one) for one in value] if isinstance(value, list) else value


def _values(measures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in _numbers(measures).items())


def _numbers(measures: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in measures.items() if isinstance(value, float)}
