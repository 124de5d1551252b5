"""Corpus -> embeddings; what `tfde encode` does, on many machines."""

from __future__ import annotations

import sys

from script import Namespace, PipelineOptions, job_parser, print_skipped, run_script

from tfde.beam.encode import encode_with_beam

parser = job_parser(
    "Encodes the corpus of a dataset directory with the document encoder of a bundle: a directory"
    " as `tfde encode` makes it, for `tfde build-index` and retrieve.py."
)
parser.add_argument(
    "--bundle", required=True, help="what `tfde export` wrote; the encoders are enough"
)
parser.add_argument("--dataset", required=True, help="dataset directory")
parser.add_argument("--output", required=True, help="directory of the embeddings")
parser.add_argument(
    "--shard_size", type=int, default=20_000, help="documents a shard: what a worker does in one go"
)
parser.add_argument("--batch_size", type=int, default=64, help="documents a batch")
parser.add_argument(
    "--dtype",
    choices=["float32", "float16", "int8"],
    default="float32",
    help="of the stored numbers; int8 has a scale for each vector",
)
parser.add_argument(
    "--skip_bad",
    action="store_true",
    help="leave out bad documents; OUTPUT.skipped.jsonl names them",
)


def run(args: Namespace, options: PipelineOptions) -> None:
    """Runs the job and prints what was encoded."""
    embeddings = encode_with_beam(
        args.bundle,
        args.dataset,
        args.output,
        options,
        shard_size=args.shard_size,
        batch_size=args.batch_size,
        dtype=args.dtype,
        skip_bad=args.skip_bad,
    )
    print_skipped(args.output)
    rows, dim = embeddings.shape
    print(
        f"{args.output}: {rows:,} documents x {dim} {embeddings.dtype}, model"
        f" {embeddings.fingerprint}, {embeddings.num_shards} shards"
    )


if __name__ == "__main__":
    sys.exit(run_script(parser, run))
