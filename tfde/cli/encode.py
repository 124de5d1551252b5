"""`tfde encode`: a corpus becomes embedding shards; called again after a kill, it resumes."""

from __future__ import annotations

import time
from typing import Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import (
    add_engine,
    add_lengths,
    add_parents,
    load_encoder,
    parent_config,
    tell_cut_texts,
)


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "encode",
        "Encodes the corpus of a dataset directory to embedding shards. An interrupted run goes on"
        " at its last shard when the same command is given again.",
    )
    parser.add_argument("--model", required=True, help="model directory, preset or checkpoint")
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--output", required=True, help="directory of the embeddings")
    parser.add_argument("--shard_size", type=PositiveInt, default=10_000, help="documents a shard")
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="documents a batch")
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "int8"],
        default="float32",
        help="of the stored numbers; int8 has a scale for each vector",
    )
    add_engine(parser, default="tensorflow")
    add_lengths(parser)
    add_parents(parser)
    return parser


def run(args: Any) -> int:
    """Encodes."""
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.retrieval.encode_corpus import encode_corpus

    dataset = DatasetDirectory(args.dataset)
    parents = parent_config(args)
    model = load_encoder(args.model, args, engine=args.engine)
    start = time.perf_counter()
    embeddings = encode_corpus(
        model,
        dataset.documents(),
        args.output,
        shard_size=args.shard_size,
        batch_size=args.batch_size,
        dtype=args.dtype,
        parents=parents,
        total=dataset.num_documents,
        show_progress=True,
    )
    seconds = time.perf_counter() - start
    tell_cut_texts(model)
    rows, dim = embeddings.shape
    print(
        f"{args.output}: {rows:,} documents x {dim} {embeddings.dtype}, model"
        f" {embeddings.fingerprint}, {seconds:.1f} s"
    )
    return 0
