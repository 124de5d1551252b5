"""`tfde export`: model (and index) to bundle."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser

MAX_GOLDEN = 1000


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "export",
        "Writes what is deployed: SavedModels, TensorFlow Serving's configuration, a manifest."
        " Without --index or --embeddings, the two encoders alone.",
    )
    parser.add_argument(
        "--model", required=True, help="model directory, preset or Hugging Face directory"
    )
    parser.add_argument("--index", help="index directory (tfde build-index)")
    parser.add_argument("--embeddings", help="embeddings directory (tfde encode)")
    parser.add_argument("--dataset", help="dataset directory: the documents' texts, golden queries")
    parser.add_argument("--output", required=True, help="the bundle, a new directory")
    parser.add_argument("--version", type=int, default=1, help="version number of the models")
    parser.add_argument(
        "--golden", type=int, default=8, help="how many of the dataset's queries are golden"
    )
    parser.add_argument(
        "--scann", type=bool, default=True, help="export the retriever with ScaNN's ops too"
    )
    return parser


def run(args: Any) -> int:
    """Exports."""
    if args.index and args.embeddings:
        raise ValueError("`--index` and `--embeddings` exclude each other.")
    if not 0 <= args.golden <= MAX_GOLDEN:
        raise ValueError(
            f"`--golden` must be in [0, {MAX_GOLDEN}]: they are warm-up requests too, of which"
            f" TensorFlow Serving takes no more. Received: {args.golden}"
        )
    from tfde.data.atomic import refuse_existing

    refuse_existing(args.output, overwrite=False)

    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.export.bundle import export_bundle
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.load_index import load_index
    from tfde.towers.dual_encoder import DualEncoder

    show_logs()
    dataset = DatasetDirectory(args.dataset) if args.dataset else None
    index: Any = None
    if args.index:
        index = load_index(args.index)
    elif args.embeddings:
        index = Embeddings.open(args.embeddings)
    bundle = export_bundle(
        DualEncoder.load(args.model),
        index,
        args.output,
        documents=dataset.documents() if dataset else None,
        golden_queries=list(islice(dataset.queries(), args.golden)) if dataset else (),
        version=args.version,
        scann=args.scann,
    )
    print(f"bundle: {bundle}")
    print(f"serve it: tfde serve {bundle}")
    return 0
