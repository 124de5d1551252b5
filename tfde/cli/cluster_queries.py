"""`tfde cluster-queries`: topics of the training queries, for batches of one topic (TAS-B)."""

from __future__ import annotations

from typing import Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "cluster-queries",
        "Clusters the queries of training pairs by their embeddings (k-means) and writes a file"
        " for `topic_clusters` in a recipe: each batch then holds queries of one cluster.",
    )
    parser.add_argument("--model", required=True, help="model directory, preset or checkpoint")
    parser.add_argument("--data", required=True, help="dataset directory or pair file")
    parser.add_argument("--split", default="train", help="the split of a dataset directory")
    parser.add_argument("--dataset", help="for a pair file that names documents by id")
    parser.add_argument("--output", required=True, help="the clusters, .jsonl or .jsonl.gz")
    parser.add_argument("--clusters", type=PositiveInt, required=True, help="how many")
    parser.add_argument(
        "--min_size",
        type=PositiveInt,
        default=64,
        help="queries that a cluster must have, the stage's batch size; smaller ones are dissolved",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first centres")
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="queries a batch")
    return parser


def run(args: Any) -> int:
    """Clusters."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.errors import require
    from tfde.storage.atomic import refuse_unwritable

    require(args.seed >= 0, "seed", "at least 0", args.seed)
    refuse_unwritable(args.output)
    check_checkpoint(args.model)

    from tfde.data.pairs.read_pairs import read_pairs

    queries = read_pairs(args.data, split=args.split, dataset=args.dataset).queries

    from tfde.negatives.topic_clusters import write_topics
    from tfde.towers.dual_encoder import DualEncoder

    sizes = write_topics(
        args.output,
        DualEncoder.load(args.model),
        queries,
        clusters=args.clusters,
        min_size=args.min_size,
        seed=args.seed,
        batch_size=args.batch_size,
    )
    print(
        f"{args.output}: {len(queries):,} queries in {len(sizes):,} clusters of"
        f" {sizes.min():,} to {sizes.max():,}"
    )
    return 0
