"""`tfde build-index`: embeddings become a ScaNN index, whose recall is measured and printed."""

from __future__ import annotations

import time
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "build-index",
        "Builds a ScaNN index: exact below 20,000 vectors, hashing up to 100,000, a tree above."
        " Prints its recall@10 against exact search, and the time of a query.",
    )
    parser.add_argument("--embeddings", required=True, help="directory that `tfde encode` wrote")
    parser.add_argument("--output", required=True, help="directory of the index")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--kind", choices=["exact", "hash", "tree"], help="by default decided by the size"
    )
    parser.add_argument(
        "--num_leaves", type=PositiveInt, help="leaves of the tree; by default the root of N"
    )
    parser.add_argument(
        "--num_leaves_to_search", type=PositiveInt, help="by default a tenth of the leaves"
    )
    parser.add_argument(
        "--training_sample_size",
        type=PositiveInt,
        default=100_000,
        help="vectors that codes and leaves are learned from",
    )
    parser.add_argument(
        "--dimensions_per_block", type=PositiveInt, default=2, help="dimensions a 4-bit code"
    )
    parser.add_argument(
        "--anisotropic_quantization_threshold",
        type=float | None,
        default=0.2,
        help="null for plain quantization",
    )
    parser.add_argument(
        "--reorder",
        type=NonNegativeInt,
        default=100,
        help="best by code that are scored again with the vectors; 0 for none",
    )
    parser.add_argument(
        "--sample",
        type=PositiveInt,
        default=1000,
        help="stored vectors, moved to cosine 0.8 of themselves, that measure the recall",
    )
    return parser


def run(args: Any) -> int:
    """Builds, measures and saves."""
    from tfde.data.atomic import refuse_existing
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.scann_parameters import ScannParameters

    refuse_existing(args.output, overwrite=args.overwrite)
    parameters = ScannParameters(
        kind=args.kind,
        num_leaves=args.num_leaves,
        num_leaves_to_search=args.num_leaves_to_search,
        training_sample_size=args.training_sample_size,
        dimensions_per_block=args.dimensions_per_block,
        anisotropic_quantization_threshold=args.anisotropic_quantization_threshold,
        reorder=args.reorder,
    )
    embeddings = Embeddings.open(args.embeddings)
    parameters.resolved(*embeddings.shape)
    embeddings.verify()

    from tfde.retrieval.scann_index import ScannIndex

    start = time.perf_counter()
    index = ScannIndex.from_embeddings(embeddings, parameters=parameters)
    seconds = time.perf_counter() - start
    measured = index.recall(10, sample=args.sample)
    index.save(args.output, overwrite=args.overwrite)
    rows, dim = index.shape
    built = index.parameters
    leaves = ""
    if built.kind == "tree":
        leaves = f" ({built.num_leaves_to_search} of {built.num_leaves} leaves)"
    print(f"{args.output}: {rows:,} x {dim}, {built.kind}{leaves}, built in {seconds:.1f} s")
    print(
        f"recall@{measured.k} {measured.recall:.4f} against exact search,"
        f" {measured.num_queries:,} sampled queries"
    )
    print(
        f"time per query: {measured.seconds_per_single_query * 1e3:.3f} ms alone,"
        f" {measured.seconds_per_query * 1e3:.3f} ms in a batch"
        f" (exact search {measured.exact_seconds_per_query * 1e3:.3f} ms)"
    )
    return 0
