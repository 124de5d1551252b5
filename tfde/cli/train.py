"""`tfde train --run recipe.yaml --output DIR`: trains a dual encoder by a recipe."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser
from tfde.config.training import (
    OptimizerConfig,
    RefreshConfig,
    SourceConfig,
    StageConfig,
    TrainRun,
    ValidationConfig,
)

_PARTS = {
    "a stage": StageConfig,
    "its optimizer": OptimizerConfig,
    "its validation": ValidationConfig,
    "its refresh": RefreshConfig,
    "a source of its mixture": SourceConfig,
}


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "train",
        "Trains a dual encoder by a recipe (pipelines/recipes holds some). A run that was"
        " interrupted goes on from its last checkpoint when the same command is given again.",
    )
    parser.add_argument(
        "--run",
        type=TrainRun,
        required=True,
        help="recipe (YAML); any field can be set too: --run.stages.NAME.temperature 0.02",
    )
    parser.add_argument("--output", required=True, help="directory of the run")
    parser.epilog = "; ".join(
        f"{what} has the fields {', '.join(field.name for field in dataclasses.fields(cls))}"
        for what, cls in _PARTS.items()
    )
    return parser


def run(args: Any) -> int:
    """Trains."""
    description = build_parser().instantiate(args).run  # refuses impossible values at once

    from tfde.training.early_checks import check_run, expand_run

    check_run(expand_run(description))  # before TensorFlow is imported

    from tfde.errors import LostProcessError
    from tfde.training.run import train

    show_logs()
    try:
        model = train(description, args.output)
    except LostProcessError:
        atexit.register(_leave)
        raise
    print(model.summary_of_sharing())
    print(f"model: {Path(args.output) / 'model'}")
    best = Path(args.output) / "best_model"
    if best.exists():
        print(f"best on the dev split: {best}")
    return 0


def _leave() -> None:
    """Ends the process: what waits for the lost one inside TensorFlow could keep it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
