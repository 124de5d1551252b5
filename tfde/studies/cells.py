"""The cells of a study, each with the run that it stands for."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jsonargparse

from tfde.config import study as study_config
from tfde.config import training as recipe
from tfde.config.study import BM25, EvaluationConfig, StudyConfig, values_of
from tfde.config.training import TrainRun
from tfde.config.yaml_text import PARSER_MODE
from tfde.errors import ConfigError, require
from tfde.plain_errors import field_names, plain_message


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell: a run, and how its model is measured.

    Args:
        axes: Axis -> value, in the order of the study.
        seed: Of the run.
        run: What is trained; `None`: nothing, BM25 is measured.
        evaluation: How it is measured.
    """

    axes: dict[str, str]
    seed: int
    run: TrainRun | None
    evaluation: EvaluationConfig

    @property
    def name(self) -> str:
        """What logs and errors call it."""
        return " ".join(f"{axis}={value}" for axis, value in self.places.items())

    @property
    def places(self) -> dict[str, str]:
        """The axes and the seed, as `--only` names them."""
        return {**self.axes, "seed": str(self.seed)}


def expand_cells(study: StudyConfig) -> list[Cell]:
    """Returns the cells in the order of the work, each once.

    Raises:
        ConfigError: a cell's run is impossible, or there is no cell.
    """
    places: dict[tuple[tuple[str, ...], int], None] = {}  # a set that keeps its order
    for block in study.cells:
        chosen = [values_of(block.get(axis, list(values))) for axis, values in study.axes.items()]
        for seed, values in itertools.product(
            block.get("seeds", study.seeds), itertools.product(*chosen)
        ):
            if not _is_excluded(study, values):
                places[values, seed] = None
    if not places:
        raise ConfigError("`cells` must leave at least one cell; `exclude` takes all of them.")
    return [
        _cell(study, dict(zip(study.axes, values, strict=True)), seed) for values, seed in places
    ]


def select_cells(cells: Sequence[Cell], only: Mapping[str, str]) -> list[Cell]:
    """Returns the cells with the values given: of axes, or `seed`.

    Raises:
        ConfigError: an unknown axis or value, or no cell has these values.
    """
    for axis, value in only.items():
        if axis not in cells[0].places:
            known = ", ".join(cells[0].places)
            raise ConfigError(f"`only` must name one of {known}. Received: {axis!r}")
        there = dict.fromkeys(cell.places[axis] for cell in cells)
        require(value in there, f"only {axis}", f"one of {', '.join(there)}", value)
    found = [cell for cell in cells if all(cell.places[a] == v for a, v in only.items())]
    if not found:
        values = " ".join(f"{axis}={value}" for axis, value in only.items())
        raise ConfigError(f"`only` must leave at least one cell. Received: {values}")
    return found


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `override` laid over it: mappings merged, the rest replaced."""
    merged = dict(base)
    for name, value in override.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = merge(below, value)
        merged[name] = value
    return merged


def _is_excluded(study: StudyConfig, values: Sequence[str]) -> bool:
    place = dict(zip(study.axes, values, strict=True))
    return any(
        all(place[axis] in values_of(wanted) for axis, wanted in combination.items())
        for combination in study.exclude
    )


def _cell(study: StudyConfig, axes: dict[str, str], seed: int) -> Cell:
    name = " ".join(f"{axis}={value}" for axis, value in axes.items())
    values = [study.axes[axis][value] for axis, value in axes.items()]
    description = functools.reduce(merge, values, dict(study.base))
    fields: dict[str, Any] = {"evaluate": description.pop("evaluate", None)}
    # A later axis may lay a field of models over it.
    if BM25 not in (description.get("model"), *(value.get("model") for value in values)):
        stages = description.get("stages") or {}
        if not isinstance(stages, Mapping):
            raise ConfigError(
                f"cell {name}: `stages` must be a mapping of names to stages. Received: {stages!r}"
            )
        kept = {name: stage for name, stage in stages.items() if stage is not None}
        fields["run"] = {**description, "stages": kept, "seed": seed}
    parsed = _parse(fields, name)
    return Cell(axes, seed, parsed.get("run"), parsed["evaluate"])


def _parse(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Reads what a recipe's YAML holds, by the parser of recipes."""
    parser = _parser(trains="run" in fields)
    try:
        parsed = parser.instantiate(parser.parse_object(fields))
    except (jsonargparse.ArgumentError, ConfigError) as error:
        message = plain_message(str(error), lambda: field_names(recipe, study_config))
        raise ConfigError(f"cell {name}: {message}") from error
    return {field: getattr(parsed, field) for field in fields}


@functools.cache
def _parser(*, trains: bool) -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode=PARSER_MODE)
    parser.add_argument("--evaluate", type=EvaluationConfig)
    if trains:
        parser.add_argument("--run", type=TrainRun)
    return parser
