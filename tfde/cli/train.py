"""`tfde train`: trains a dual encoder by a recipe, or from a table of questions and answers."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tfde.cli.field_help import asked_part
from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import fields_of
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import RefreshConfig, SourceConfig, StageConfig, TrainRun
from tfde.config.validation import ValidationConfig
from tfde.config.yaml_text import YamlTextError, load_yaml

_PARTS = {
    "a stage": StageConfig,
    "its optimizer": OptimizerConfig,
    "its validation": ValidationConfig,
    "its refresh": RefreshConfig,
    "a source of its mixture": SourceConfig,
}

# Where a field is that people give as an option of its own.
_PLACES = {field.name: f"optimizer.{field.name}" for field in dataclasses.fields(OptimizerConfig)}
_PLACES |= {field.name: field.name for field in dataclasses.fields(StageConfig)}
_PLACES |= {"lr": "optimizer.learning_rate"}

_PAIRS_OF_HELP = 10_000
_SPLITS = {"train": "train by", "dev": "choose by", "test": "measure at the end"}


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "train",
        "Trains a dual encoder by a recipe (pipelines/recipes holds some). A run that was"
        " interrupted goes on from its last checkpoint when the same command is given again."
        " Without a recipe, from a table of questions and answers: tfde train --table FILE --model"
        " M --output DIR; tfde train --table FILE --help shows its options.",
        usage=(
            "--run RECIPE --output DIR [--run.FIELD VALUE ...]",
            "--table FILE --model MODEL --output DIR [--guard DATASET ...] [--run.FIELD VALUE ...]",
        ),
    )
    parser.add_argument(
        "--run",
        type=TrainRun,
        required=True,
        help="recipe (YAML); any field can be set too: --run.stages.NAME.temperature 0.02",
    )
    parser.add_argument("--output", required=True, help="directory of the run")
    parser.alternatives = {"--table": _table_parser}
    parser.stage_fields = _PLACES
    parser.epilog = fields_of(_PARTS)
    return parser


def run(args: Any) -> int:
    """Trains."""
    if "table" in args:
        args = _recipe_of_table(args)
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
        from tfde.training.training_card import format_gains

        print(f"kept by the dev split: {best}")
        stages = description.competing_stages(list(description.stages)[-1])
        validation = description.stages[stages[-1]].validation
        gains = format_gains(Path(args.output), leading=validation.measures[0], stages=stages)
        if gains:
            print(gains)
    return 0


def _table_parser() -> CommandParser:
    parser = command_parser(
        "train",
        "Trains a dual encoder from a table with a question and its answer in each row. The rows"
        " are split into train, dev and test; data and recipe are written into --output. A run that"
        " was interrupted goes on when the same command is given again.",
        cls=_TableParser,
    )
    parser.add_argument(
        "--table",
        type=str,
        required=True,
        help=".csv, .tsv, .json, .jsonl, .parquet, .arrow, or a folder of such",
    )
    parser.add_argument(
        "--model",
        type=str,
        required=True,
        help="what training starts from: a model directory, a checkpoint, hf://...",
    )
    parser.add_argument("--output", required=True, help="directory of the run")
    parser.add_argument(
        "--columns",
        nargs="+",
        type=str,
        metavar="COLUMN",
        help="as of `tfde convert`: query=NAME document=NAME, where names are not known",
    )
    parser.add_argument(
        "--guard",
        action="append",
        type=str,
        metavar="[NAME=]DATASET",
        help="a dataset directory away from home: a model that loses more than 0.005 nDCG@10 on its"
        " test split is not the best; may be repeated",
    )
    parser.add_argument("--skip_bad", action="store_true", help="leave out and count bad rows")
    parser.epilog = (
        "Any field of the recipe can be set: --run.stages.finetune.steps 500;"
        " --run.stages.finetune.help shows them."
    )
    return parser


class _TableParser(CommandParser):
    """Takes fields of the recipe that is to be written, `--run.FIELD VALUE`, into `changes`."""

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        words, changes = [], {}
        given = iter(args)
        for word in given:
            if not word.startswith("--run."):
                words.append(word)
                continue
            option, sign, value = word.partition("=")
            if names := asked_part(option):
                print(_part_of_table_recipe(names))
                build_parser().parse_args([option])  # shows all fields, and ends
            value = value if sign else next(given, "--")
            if not sign and value.startswith("--"):
                self.error(f"argument {option}: expected one argument")
            try:
                changes[option.removeprefix("--run.")] = load_yaml(value)
            except YamlTextError:  # "{title} {text}", which is text
                changes[option.removeprefix("--run.")] = value
        for place, value in changes.items():
            if value is None and "." not in place:
                self.error(f"argument --run.{place}: must not be null")
        if any(word == "--run" or word.startswith("--run=") for word in words):
            self.error("give --run or --table; --run.FIELD VALUE changes a field of its recipe")
        for word in words:
            option = word.partition("=")[0]
            field = _PLACES.get(option.removeprefix("--").replace("-", "_"))
            if field and option.startswith("--") and option not in self._option_string_actions:
                meant = f"did you mean --run.stages.finetune.{field}?"
                self.error(f"unrecognized arguments: {option}; {meant}")
        args = super().parse_args(words, *rest, **options)
        args.changes = changes
        return args


def _part_of_table_recipe(names: Sequence[str]) -> str:
    """Returns what `--run.PART.help` tells of the recipe of a table before the fields."""
    from tfde.training.table_run import describe_run

    part: Any = describe_run("DIR/data", "MODEL", {}, pairs=_PAIRS_OF_HELP)
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    if not isinstance(part, dict):
        return ""
    shown = textwrap.indent(yaml.safe_dump(part, sort_keys=False).rstrip(), "  ")
    return f"The recipe of a table with {_PAIRS_OF_HELP:,} pairs to train by:\n\n{shown}\n"


def _recipe_of_table(args: Any) -> Any:
    """Returns the arguments of a run by the recipe that is written for `--table`."""
    from tfde.cli.shared_options import hint_of_skip_bad, named_datasets, tell_garbled
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.data.formats.columns import understood
    from tfde.data.formats.records import Source
    from tfde.storage.intake import Intake
    from tfde.training.run_record import TABLE_DATA
    from tfde.training.table_run import prepare_table

    guards = named_datasets("--guard", args.guard or ())
    _check_changes(args, guards)
    intake = Intake(skip_bad=args.skip_bad)
    with hint_of_skip_bad(intake):
        table = Path(args.table)
        if table.is_file() and (columns := understood(Source("rows", table), args.columns)):
            print(f"{table}: {columns}")
        recipe = prepare_table(
            args.table,
            args.output,
            model=args.model,
            guards=guards,
            columns=args.columns,
            changes=args.changes,
            intake=intake,
        )
    dataset = DatasetDirectory(recipe.parent / TABLE_DATA)
    questions = ", ".join(f"{len(dataset.qrels(s)):,} to {use}" for s, use in _SPLITS.items())
    print(f"{dataset.path}: {dataset.num_documents:,} answers; questions: {questions}")
    tell_garbled(intake)
    for kind, count in {**intake.left_out, "bad rows": intake.skipped}.items():
        if count:
            print(f"left out: {count:,} {kind}")
    print(f"recipe: {recipe}")
    return build_parser().parse_args(["--run", str(recipe), "--output", args.output])


def _check_changes(args: Any, guards: Mapping[str, str]) -> None:
    """Ends the command where a field is unknown or impossible, before data are written."""
    from tfde.training.table_run import describe_run

    run = describe_run(args.output, args.model, guards, pairs=1000, changes=args.changes)
    parser = build_parser()
    parser.instantiate(parser.parse_object({"run": run, "output": args.output}))


def _leave() -> None:
    """Ends the process: what waits for the lost one inside TensorFlow could keep it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
