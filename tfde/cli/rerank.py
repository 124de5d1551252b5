"""`tfde rerank`: a run's best documents in the order of another model."""

from __future__ import annotations

import sys
import time
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.types import Qrels, Run

_MEASURE = "nDCG@10"


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "rerank",
        "Scores the best documents of a run anew, by a cross-encoder or another model of pairs, and"
        " writes a run. `tfde evaluate --bm25 --save_runs DIR` and `tfde retrieve` write runs.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="directory of `tfde train-matcher` or `tfde train` (a dual encoder), a sequence"
        " classification checkpoint, or a sentence-transformers encoder",
    )
    parser.add_argument("--run_file", required=True, help="TREC run, plain or packed")
    parser.add_argument("--dataset", required=True, help="dataset directory of its documents")
    parser.add_argument("--split", help="only the queries of this split; by default all of the run")
    parser.add_argument("--output", required=True, help="the new run; .gz packs it")
    parser.add_argument("--depth", type=PositiveInt, default=100, help="documents a query")
    parser.add_argument(
        "--label",
        type=str | None,
        help="for a model with labels the one that says relevant; by default `1`, if it has one",
    )
    parser.add_argument("--batch_size", type=PositiveInt, default=32, help="pairs a batch")
    parser.add_argument("--tag", default="rerank", help="last column of the run")
    return parser


def run(args: Any) -> int:
    """Reranks."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.data.ranking import ranking
    from tfde.errors import ConfigError, naming
    from tfde.retrieval.runs import check_output, read_run

    check_output(args.output, args.tag, given=[args.run_file])
    with naming("model"):
        check_checkpoint(args.model)
    dataset = DatasetDirectory(args.dataset)
    given = read_run(args.run_file)
    queries = [query for query in dataset.queries(args.split) if query.query_id in given]
    if not queries:
        raise ConfigError(f"{args.run_file}: has no query of {args.dataset}.")
    if left_out := len(given) - len(queries):
        where = f"split {args.split} of {args.dataset}" if args.split else args.dataset
        print(
            f"tfde rerank: left out: {left_out:,} queries of the run that are not in {where}",
            file=sys.stderr,
        )
    wanted = {
        doc_id for query in queries for doc_id in ranking(given[query.query_id])[: args.depth]
    }

    from tfde.matching.load import load_pair_scorer
    from tfde.matching.relevance import relevant_label
    from tfde.retrieval.rerank import rerank
    from tfde.retrieval.runs import write_run

    with naming("model"):
        model = load_pair_scorer(args.model)
    label = relevant_label(model, args.label)
    start = time.perf_counter()
    results = rerank(
        model,
        given,
        queries,
        dataset.document_store(wanted),
        depth=args.depth,
        label=label,
        batch_size=args.batch_size,
        show_progress=True,
        source=args.run_file,
    )
    seconds = time.perf_counter() - start
    write_run(args.output, results, tag=args.tag)
    pairs = sum(min(args.depth, len(given[query.query_id])) for query in queries)
    print(
        f"{args.output}: {len(results):,} queries, {pairs:,} pairs scored, {seconds:.1f} s"
        f" ({pairs / seconds:.0f} pairs/s){'' if label is None else f', by label {label}'}"
    )
    qrels = _judgements(dataset, args.split, {query.query_id for query in queries})
    if qrels:
        print(_comparison(given, results, qrels, f"{args.run_file} --run_file {args.output}"))
    return 0


def _judgements(dataset: DatasetDirectory, split: str | None, query_ids: Container[str]) -> Qrels:
    """Returns those of a split, as `tfde evaluate` counts them, or else those of the queries."""
    if split:
        return dataset.qrels(split)
    return {key: judged for key, judged in dataset.all_qrels().items() if key in query_ids}


def _comparison(given: Run, reranked: Run, qrels: Qrels, runs: str) -> str:
    """Returns what reranking changed, and what both runs give together."""
    from tfde.evaluation.measures import evaluate
    from tfde.retrieval.fusion import reciprocal_rank_fusion

    before, after, fused = (
        evaluate(run, qrels, _MEASURE)[_MEASURE]
        for run in (given, reranked, reciprocal_rank_fusion([given, reranked]))
    )
    return (
        f"{_MEASURE} of {len(qrels):,} judged queries: {before:.4f} as given, {after:.4f} reranked,"
        f" {fused:.4f} both (tfde fuse --run_file {runs} --output FILE)"
    )
