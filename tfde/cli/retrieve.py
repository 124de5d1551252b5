"""`tfde retrieve`: queries become a TREC run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import (
    PARENT_SEPARATOR,
    add_lengths,
    add_max_passage,
    add_separator,
    fold_passages,
    hint_of_skip_bad,
    load_encoder,
    passages_wanted,
    tell_cut_texts,
)
from tfde.errors import require

if TYPE_CHECKING:
    from tfde.storage.intake import Intake
    from tfde.types import Query


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "retrieve",
        "Encodes queries, searches an index and writes a TREC run. The index must have been made"
        " with the same model.",
    )
    parser.add_argument("--model", required=True, help="model directory, preset or checkpoint")
    parser.add_argument("--index", required=True, help="directory that `tfde build-index` wrote")
    parser.add_argument("--queries", help="JSON Lines with _id and text, or .gz")
    parser.add_argument("--dataset", help="dataset directory, whose queries are taken instead")
    parser.add_argument("--split", help="with --dataset: only the queries that this split judges")
    parser.add_argument(
        "--skip_bad", action="store_true", help="with --queries: leave out and count bad lines"
    )
    parser.add_argument("--output", required=True, help="the run, six columns; .gz packs it")
    parser.add_argument("-k", type=PositiveInt, default=100, help="documents a query")
    parser.add_argument(
        "--ignore_identical_ids",
        action="store_true",
        help="leave out a document whose id is the query's, for sets whose queries are documents",
    )
    parser.add_argument("--tag", default="tfde", help="last column of the run")
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="queries a batch")
    add_lengths(parser)
    add_max_passage(parser)
    add_separator(parser)
    return parser


def run(args: Any) -> int:
    """Retrieves."""
    from tfde.retrieval.runs import check_output
    from tfde.storage.intake import Intake

    check_output(args.output, args.tag, given=[args.queries] if args.queries else ())
    given = args.max_passage or args.parent_separator == PARENT_SEPARATOR
    require(given, "--parent_separator", "beside --max_passage", args.parent_separator)
    intake = Intake(skip_bad=args.skip_bad)
    with hint_of_skip_bad(intake):
        queries = _read_queries(args, intake)

    from tfde.data.ranking import without_query
    from tfde.retrieval.live.load_index import load_index
    from tfde.retrieval.retrieve import retrieve
    from tfde.retrieval.runs import write_run

    index = load_index(args.index)
    model = load_encoder(args.model, args)
    wanted = args.k + args.ignore_identical_ids
    start = time.perf_counter()
    results = retrieve(
        model,
        index,
        queries,
        passages_wanted(args, wanted),
        batch_size=args.batch_size,
        show_progress=True,
    )
    results = fold_passages(args, results, wanted)
    if args.ignore_identical_ids:
        results = {q: without_query(found, q, args.k) for q, found in results.items()}
    seconds = time.perf_counter() - start
    tell_cut_texts(model)
    write_run(args.output, results, tag=args.tag)
    lines = sum(map(len, results.values()))
    skipped = f", {intake.skipped:,} bad skipped" if intake.skipped else ""
    print(f"{args.output}: {len(results):,} queries{skipped}, {lines:,} lines, {seconds:.1f} s")
    return 0


def _read_queries(args: Any, intake: Intake) -> list[Query]:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.retrieval.retrieve import read_queries

    if (args.queries is None) == (args.dataset is None):
        raise ValueError("`--queries` or `--dataset` must be given, and not both.")
    require(args.split is None or args.dataset, "--split", "beside --dataset", args.split)
    given = args.dataset is None or not args.skip_bad
    require(given, "--skip_bad", "beside --queries", args.skip_bad)
    if args.dataset is None:
        return list(read_queries(args.queries, intake))
    return list(DatasetDirectory(args.dataset).queries(args.split))
