"""`tfde study --run study.yaml --output DIR`: a grid of training runs, each measured."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser
from tfde.config.study import StudyConfig


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "study",
        "Trains and measures every cell of a grid of runs (pipelines/studies holds some) and"
        " prints a Markdown table. Cells that are done are skipped, stages that several cells"
        " begin with are trained once, and a killed study goes on when the same command is given"
        " again.",
        usage=["--run STUDY --output DIR [--run.FIELD VALUE ...] [--only AXIS=VALUE ...] [...]"],
    )
    parser.add_argument(
        "--run",
        type=StudyConfig,
        help="study (YAML); any field can be set too: --run.seeds '[1, 2, 3]'",
    )
    parser.add_argument("--output", required=True, help="directory of the study")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="AXIS=VALUE",
        help="only the cells with these values, or with seed=VALUE; the others are left for later",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="cells at the same time, each on its share of the cores (without a GPU)",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of what is done, and do nothing"
    )
    parser.add_argument(
        "--figure",
        help="draw what is done to this image, and do nothing else: a measure along the last axis,"
        " or with --against the gains over that value; needs matplotlib",
    )
    parser.add_argument("--measure", help="of the figure; the study's first one unless given")
    parser.add_argument(
        "--against",
        metavar="AXIS=VALUE",
        help="compare every place of the grid with the one that has this value, and say how sure"
        " the difference is",
    )
    parser.add_argument("--csv", help="write table and comparisons to this file too")
    return parser


def run(args: Any) -> int:
    """Does what is not done yet, and prints what is."""
    from tfde.errors import ConfigError
    from tfde.studies.cells import expand_cells
    from tfde.studies.comparisons import (
        check_baseline,
        compare_with,
        format_comparisons,
        write_csv,
    )
    from tfde.studies.study_checks import check_cells
    from tfde.studies.study_figures import draw_gains, draw_results
    from tfde.studies.study_tables import format_origin, format_results, load_results

    axis, value = _axis_and_value("against", args.against) if args.against else ("", "")
    if args.only and (args.table or args.figure):
        raise ConfigError("`--only` chooses cells to work on; --table and --figure show all.")
    if not (args.table or args.figure):
        if not args.run.base:
            raise ConfigError("`--run` must name a study, except with --table or --figure.")
        study = build_parser().instantiate(args).run
        only = _only(args.only)
        if args.against:
            check_baseline(study.axes, axis, value)
        check_cells(expand_cells(study), study)  # before TensorFlow is imported

        from tfde.studies.study import run_study

        show_logs()
        run_study(study, args.output, only=only, jobs=args.jobs, show_progress=True)
    results = load_results(args.output)
    comparisons = []
    if args.against:
        comparisons = compare_with(args.output, results, axis, value)
    if args.figure:
        measures = [name for group in results.groups for name in group.records[0]["measures"]]
        measure = args.measure or (measures or [""])[0]
        if args.against:
            draw_gains(results, comparisons, args.figure, axis=axis, measure=measure)
        else:
            draw_results(results, args.figure, measure=measure)
    if args.csv:
        write_csv(args.csv, results, comparisons)
    if args.table or not args.figure:
        print(format_results(results))
        if args.against:
            print(f"\n{format_comparisons(results, axis, comparisons)}")
        print(f"\n{format_origin(results, shlex.join(['tfde', *sys.argv[1:]]))}")
    return 0


def _axis_and_value(option: str, text: str) -> tuple[str, str]:
    from tfde.errors import require

    axis, separator, value = text.partition("=")
    require(separator != "", option, "AXIS=VALUE", text)
    return axis, value


def _only(values: list[str]) -> dict[str, str]:
    from tfde.errors import ConfigError

    only: dict[str, str] = {}
    for value in values:
        axis, wanted = _axis_and_value("only", value)
        if axis in only:
            raise ConfigError(f"`only` must name an axis once. Received: {value!r}")
        only[axis] = wanted
    return only
