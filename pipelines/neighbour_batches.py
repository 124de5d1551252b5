"""Clusters of queries whose answers stand near each other, for batches full of hard negatives.

    python pipelines/neighbour_batches.py --dataset $TFDE_DATA/squad_sent --output near.jsonl.gz

Sentences of one paragraph, and paragraphs of one article, stand one after the other in the corpus.
Queries are taken in the order of their first answer there, `--together` neighbours from each of
several places of the corpus make a cluster of `--size` or more, and a batch of one cluster
(`topic_clusters` in a recipe) holds other sentences of each answer's paragraph: what a model
confuses, as negatives that cost nothing.
"""

import argparse
import random
import sys

from tfde.cli.main import run_command
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.query_clusters import write_clusters
from tfde.errors import require


def neighbours(
    dataset: DatasetDirectory, split: str, *, size: int, together: int, seed: int
) -> dict[str, int]:
    """Returns the cluster of each query of a split; every cluster has `size` queries or more.

    A split of fewer is one cluster. Queries without an answer in the corpus have none.
    """
    places = {document.doc_id: place for place, document in enumerate(dataset.documents())}
    relevant = dataset.relevant(split).items()
    first = {
        query: min(places[doc_id] for doc_id in doc_ids) for query, doc_ids in relevant if doc_ids
    }
    ordered = sorted(first, key=first.__getitem__)
    rows = [ordered[i : i + together] for i in range(0, len(ordered), together)]
    if together < size:
        random.Random(seed).shuffle(rows)
    last = max(len(first) // size - 1, 0)  # takes the rest
    mixed = (query_id for row in rows for query_id in row)
    return {query_id: min(number // size, last) for number, query_id in enumerate(mixed)}


def main() -> int:
    """Writes the file of clusters; an expected error becomes one line and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--split", default="train", help="whose queries (train)")
    parser.add_argument("--size", type=int, default=128, help="queries in a cluster (128)")
    parser.add_argument(
        "--together",
        type=int,
        default=16,
        help="neighbours of one place that stay together (16); with as many as --size, a cluster is"
        " one place",
    )
    parser.add_argument("--seed", type=int, default=0, help="which places meet (0)")
    parser.add_argument("--output", required=True, help="file for `topic_clusters`")
    return run_command("neighbour_batches.py", _write, parser.parse_args())


def _write(args: argparse.Namespace) -> None:
    for name in ("size", "together"):
        require(getattr(args, name) >= 1, f"--{name}", "at least 1", getattr(args, name))
    dataset = DatasetDirectory(args.dataset)
    dataset.validate([args.split])
    clusters = neighbours(
        dataset, args.split, size=args.size, together=args.together, seed=args.seed
    )
    write_clusters(args.output, clusters)
    left_out = len(dataset.qrels(args.split)) - len(clusters)
    sys.stdout.write(
        f"{args.output}: {len(clusters):,} queries in {len(set(clusters.values())):,} clusters;"
        f" {left_out:,} judged queries have no answer in the corpus\n"
    )


if __name__ == "__main__":
    sys.exit(main())
