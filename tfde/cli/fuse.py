"""`tfde fuse`: several TREC runs become one, such as a dual encoder's and BM25's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.types import Run


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "fuse",
        "Fuses runs by reciprocal ranks: a document's score is the sum over the runs of"
        " 1 / (constant + rank). With --weights by scores: each run's scores for a query are scaled"
        " to [0, 1] and added with its weight; the weights' ratios count. Runs are written by"
        " `tfde evaluate --save_runs DIR` and `tfde retrieve`.",
    )
    parser.add_argument(
        "--run_file", action="append", required=True, help="TREC run, plain or packed; repeat it"
    )
    parser.add_argument("--output", required=True, help="the new run; .gz packs it")
    parser.add_argument(
        "--constant", type=float, help="without --weights: 60, as Cormack et al. take, unless given"
    )
    parser.add_argument(
        "--weights", type=float, nargs="+", help="fuse by scores; one for each run, e.g. 1 0.7"
    )
    parser.add_argument("-k", type=PositiveInt, default=1000, help="documents a query, at most")
    parser.add_argument("--tag", default="fusion", help="last column of the run")
    return parser


def run(args: Any) -> int:
    """Fuses."""
    from tfde.data.ranking import first_documents
    from tfde.errors import require
    from tfde.retrieval.fusion import reciprocal_rank_fusion, weighted_score_fusion
    from tfde.retrieval.runs import check_output, read_run, write_run

    rule = "left out beside `weights`, which fuse by scores and not by ranks"
    require(args.weights is None or args.constant is None, "constant", rule, args.constant)
    check_output(args.output, args.tag, given=args.run_file)
    runs = [read_run(path) for path in args.run_file]
    _check_queries(args.run_file, runs)
    if args.weights is None:
        constant = 60.0 if args.constant is None else args.constant
        fused = reciprocal_rank_fusion(runs, constant=constant)
    else:
        fused = weighted_score_fusion(runs, args.weights)
    best = {query_id: first_documents(results, args.k) for query_id, results in fused.items()}
    write_run(args.output, best, tag=args.tag)
    print(f"{args.output}: {len(best):,} queries of {len(runs)} runs")
    return 0


def _check_queries(paths: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuses runs that have nothing to fuse, and tells of queries that not all runs have."""
    from tfde.errors import ConfigError

    for path, run in zip(paths, runs, strict=True):
        if not run:
            raise ConfigError(f"{path}: a run must hold results. Received: an empty file")
    every = set(runs[0]).intersection(*runs)
    if not every and len(runs) > 1:
        raise ConfigError(
            f"the runs must have queries in common. Received: {', '.join(paths)}, no query in all"
        )
    either = set(runs[0]).union(*runs)
    if len(every) < len(either):
        print(
            f"tfde fuse: {len(either) - len(every):,} of {len(either):,} queries are not in all"
            " runs; they are ranked by those that have them",
            file=sys.stderr,
        )
