"""Pages -> pre-training pairs; what `tfde make-pairs` does, on many machines."""

from __future__ import annotations

import sys

from script import Namespace, PipelineOptions, job_parser, print_skipped, run_script

from tfde.beam.make_pairs import make_pairs_with_beam
from tfde.cli.make_pairs import add_task_options, tasks_of
from tfde.pretraining.write_pair_file import format_statistics

parser = job_parser(
    "Draws pre-training pairs from a file of pages: the file of `tfde make-pairs` with the same"
    " seed. Pages are cut into sentences by the process that gives the job."
)
parser.add_argument("--pages", required=True, help="the file of pages")
parser.add_argument(
    "--store",
    required=True,
    help="directory of the pages cut into sentences; made where there is none",
)
parser.add_argument("--output", required=True, help="the pair file; .gz or .zst packs it")
add_task_options(parser)
parser.add_argument("--limit", type=int, help="how many pairs; by default those of --epochs")
parser.add_argument("--epochs", type=int, default=1, help="how often all places are gone through")
parser.add_argument("--seed", type=int, default=0, help="decides all draws")
parser.add_argument(
    "--pairs_a_part", type=int, default=10_000, help="what a worker draws in one go"
)
parser.add_argument("--language", default="en", help="ISO 639 code of the pages, for sentences")
parser.add_argument(
    "--cut_workers", type=int, default=1, help="processes of this machine that cut pages"
)
parser.add_argument(
    "--skip_bad", action="store_true", help="leave out bad pages; OUTPUT.skipped.jsonl names them"
)


def run(args: Namespace, options: PipelineOptions) -> None:
    """Runs the job and prints the statistics."""
    weights, titles = tasks_of(args)
    statistics = make_pairs_with_beam(
        args.pages,
        args.store,
        args.output,
        options,
        weights=weights,
        titles=titles,
        seed=args.seed,
        limit=args.limit,
        epochs=args.epochs,
        pairs_a_part=args.pairs_a_part,
        language=args.language,
        workers=args.cut_workers,
        skip_bad=args.skip_bad,
    )
    print_skipped(args.output)
    print(f"{args.output}:")
    print(format_statistics(statistics, "words"))


if __name__ == "__main__":
    sys.exit(run_script(parser, run))
