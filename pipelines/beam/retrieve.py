"""Queries -> TREC run; `tfde retrieve` with exact search, on many machines."""

from __future__ import annotations

import sys

from script import Namespace, PipelineOptions, job_parser, print_skipped, run_script

from tfde.beam.retrieve import retrieve_with_beam

parser = job_parser(
    "Encodes queries with the query encoder of a bundle and searches embeddings exactly, shard by"
    " shard. No index is needed."
)
parser.add_argument(
    "--bundle", required=True, help="what `tfde export` wrote, of the embeddings' model"
)
parser.add_argument("--embeddings", required=True, help="directory of the embeddings")
parser.add_argument("--queries", required=True, help="JSON Lines with _id and text, or packed")
parser.add_argument("--output", required=True, help="the run, six columns; .gz or .zst packs it")
parser.add_argument("-k", type=int, default=100, help="documents a query")
parser.add_argument("--tag", default="tfde", help="last column of the run")
parser.add_argument("--batch_size", type=int, default=64, help="queries a batch")
parser.add_argument("--queries_a_part", type=int, default=2048, help="queries merged in one go")
parser.add_argument(
    "--skip_bad", action="store_true", help="leave out bad queries; OUTPUT.skipped.jsonl names them"
)


def run(args: Namespace, options: PipelineOptions) -> None:
    """Runs the job and prints what was found."""
    counts = retrieve_with_beam(
        args.bundle,
        args.embeddings,
        args.queries,
        args.output,
        options,
        k=args.k,
        tag=args.tag,
        batch_size=args.batch_size,
        queries_a_part=args.queries_a_part,
        skip_bad=args.skip_bad,
    )
    print_skipped(args.output)
    print(f"{args.output}: {counts['queries']:,} queries, {counts['lines']:,} lines")


if __name__ == "__main__":
    sys.exit(run_script(parser, run))
