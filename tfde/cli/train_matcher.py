"""`tfde train-matcher --run recipe.yaml --output DIR`: trains what scores pairs of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import fields_of
from tfde.config.matching import MatchDataConfig, MatchModelConfig, MatchRun, TeachingConfig
from tfde.config.optimizer import OptimizerConfig

_PARTS = {
    "model": MatchModelConfig,
    "data, validation and test": MatchDataConfig,
    "teaching": TeachingConfig,
    "optimizer": OptimizerConfig,
}


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "train-matcher",
        "Trains a cross-encoder or a matcher on pairs with labels, by a recipe (pipelines/recipes"
        " holds some), alone or taught by cross-encoders. A run that was interrupted goes on from"
        " its last checkpoint when the same command is given again.",
        usage=["--run RECIPE --output DIR [--run.FIELD VALUE ...]"],
    )
    parser.add_argument(
        "--run",
        type=MatchRun,
        required=True,
        help="recipe (YAML); any field can be set too: --run.model.kind siamese",
    )
    parser.add_argument("--output", required=True, help="directory of the run")
    parser.epilog = fields_of(_PARTS)
    return parser


def run(args: Any) -> int:
    """Trains."""
    description = build_parser().instantiate(args).run  # refuses impossible values at once

    from tfde.training.early_checks import check_match_run, expand_match_run

    check_match_run(expand_match_run(description))  # before TensorFlow is imported

    from tfde.training.match_run import MEASURES_FILE, train_matcher

    show_logs()
    train_matcher(description, args.output)
    output = Path(args.output)
    best = output / "best_model"
    print(f"model: {best if best.exists() else output / 'model'}")
    if (output / MEASURES_FILE).exists():
        measures = json.loads((output / MEASURES_FILE).read_text("utf-8"))
        numbers = {name: value for name, value in measures.items() if isinstance(value, float)}
        found = "  ".join(f"{name} {value:.4f}" for name, value in sorted(numbers.items()))
        print(f"test ({measures['pairs']} pairs): {found}")
    return 0
