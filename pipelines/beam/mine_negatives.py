"""Run -> pairs with hard negatives; `tfde mine-negatives --run_file`, on many machines."""

from __future__ import annotations

import sys

from script import Namespace, PipelineOptions, job_parser, print_skipped, run_script

from tfde.beam.mine_negatives import mine_with_beam
from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory

parser = job_parser(
    "Finds hard negatives for the pairs of a dataset among the candidates of a run (retrieve.py"
    " makes one): the file of `tfde mine-negatives --run_file`."
)
parser.add_argument("--dataset", required=True, help="dataset directory")
parser.add_argument("--split", default="train", help="whose pairs")
parser.add_argument("--run_file", required=True, help="candidates: a TREC run, plain or packed")
parser.add_argument("--output", required=True, help="the pair file; .gz or .zst packs it")
parser.add_argument("--count", type=int, default=4, help="negatives of each pair")
parser.add_argument("--min_rank", type=int, default=1, help="first rank that may be a negative")
parser.add_argument("--max_rank", type=int, default=100, help="last such rank")
parser.add_argument(
    "--ignore_identical_ids",
    action="store_true",
    help="leave out a document whose id is the query's, for sets whose queries are documents",
)
parser.add_argument("--score_margin", type=float, help="how much less than the positive it scores")
parser.add_argument("--relative_margin", type=float, help="the same as a share of the positive's")
parser.add_argument(
    "--choice",
    choices=["top", "random", "sampled"],
    default="top",
    help="of what is left: the best, any, or drawn by the softmax of the scores",
)
parser.add_argument("--temperature", type=float, default=1.0, help="divides the scores for sampled")
parser.add_argument("--seed", type=int, default=0, help="of the choice")
parser.add_argument(
    "--documents",
    choices=["ids", "texts"],
    default="ids",
    help="whether the file names documents or holds their texts",
)
parser.add_argument("--queries_at_once", type=int, default=500, help="queries mined in one go")
parser.add_argument(
    "--skip_bad",
    action="store_true",
    help="leave out bad lines of the run; OUTPUT.skipped.jsonl names them",
)


def run(args: Namespace, options: PipelineOptions) -> None:
    """Runs the job and prints the report."""
    rules = MiningRules(
        count=args.count,
        min_rank=args.min_rank,
        max_rank=args.max_rank,
        ignore_identical_ids=args.ignore_identical_ids,
        score_margin=args.score_margin,
        relative_margin=args.relative_margin,
        choice=args.choice,
        temperature=args.temperature,
        seed=args.seed,
    )
    report = mine_with_beam(
        DatasetDirectory(args.dataset),
        args.run_file,
        args.output,
        rules,
        options,
        split=args.split,
        documents=args.documents,
        queries_at_once=args.queries_at_once,
        skip_bad=args.skip_bad,
    )
    print_skipped(args.output)
    print(f"{args.output}: {report.text(rules.count)}")


if __name__ == "__main__":
    sys.exit(run_script(parser, run))
