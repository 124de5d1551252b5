"""`tfde export`: model (and index) to a bundle, or model to a sentence-transformers directory."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tfde.cli.lengths import add_lengths, load_model
from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser

MAX_GOLDEN = 1000
_SENTENCE_TRANSFORMERS = "sentence-transformers"
_OF_BUNDLES = ("index", "embeddings", "dataset", "version", "golden", "scann", "precision")
_AS_IT_IS = "as_loaded"
_DTYPES = {
    _AS_IT_IS: None,
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "int8": "mixed_bfloat16",
}


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "export",
        "Writes what is deployed: SavedModels, TensorFlow Serving's configuration, a manifest."
        " Without --index or --embeddings, the two encoders alone."
        f" With --format {_SENTENCE_TRANSFORMERS}, a directory for users of PyTorch instead.",
    )
    parser.add_argument("--model", required=True, help="model directory, preset or checkpoint")
    parser.add_argument(
        "--format",
        choices=["bundle", _SENTENCE_TRANSFORMERS],
        default="bundle",
        help="what is written",
    )
    parser.add_argument("--index", help="index directory (tfde build-index)")
    parser.add_argument("--embeddings", help="embeddings directory (tfde encode)")
    parser.add_argument("--dataset", help="dataset directory: the documents' texts, golden queries")
    parser.add_argument("--output", required=True, help="a new directory")
    parser.add_argument("--version", type=int, default=1, help="version number of the models")
    parser.add_argument(
        "--golden", type=int, default=8, help="how many of the dataset's queries are golden"
    )
    parser.add_argument(
        "--scann", type=bool, default=True, help="export the retriever with ScaNN's ops too"
    )
    parser.add_argument(
        "--precision",
        choices=list(_DTYPES),
        default=_AS_IT_IS,
        help="what the towers compute in; int8: matrices stored in 8 bits, computed in bfloat16",
    )
    add_lengths(parser)
    return parser


def run(args: Any) -> int:
    """Exports."""
    from tfde.data.atomic import refuse_existing

    if args.format == _SENTENCE_TRANSFORMERS:
        _refuse_options_of_bundles(args)
        refuse_existing(args.output, overwrite=False)
        return _export_sentence_transformers(args)
    if args.index and args.embeddings:
        raise ValueError("`--index` and `--embeddings` exclude each other.")
    if not 0 <= args.golden <= MAX_GOLDEN:
        raise ValueError(
            f"`--golden` must be in [0, {MAX_GOLDEN}]: they are warm-up requests too, of which"
            f" TensorFlow Serving takes no more. Received: {args.golden}"
        )
    refuse_existing(args.output, overwrite=False)
    return _export_bundle(args)


def _export_bundle(args: Any) -> int:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.export.bundle import export_bundle
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.load_index import load_index

    show_logs()
    dataset = DatasetDirectory(args.dataset) if args.dataset else None
    index: Any = None
    if args.index:
        index = load_index(args.index)
    elif args.embeddings:
        index = Embeddings.open(args.embeddings)
    bundle = export_bundle(
        load_model(args.model, args, dtype=_DTYPES[args.precision]),
        index,
        args.output,
        documents=dataset.documents() if dataset else None,
        golden_queries=list(islice(dataset.queries(), args.golden)) if dataset else (),
        version=args.version,
        scann=args.scann,
        int8_weights=args.precision == "int8",
    )
    print(f"bundle: {bundle}")
    print(f"serve it: tfde serve {bundle}")
    return 0


def _export_sentence_transformers(args: Any) -> int:
    from tfde.export.sentence_transformers import export_sentence_transformers, limitations

    show_logs()
    model = load_model(args.model, args)
    directory = export_sentence_transformers(model, args.output)
    print(f"sentence-transformers directory: {directory}")
    for line in limitations(model):
        print(f"note: {line}")
    print(
        "load it in Python: from sentence_transformers import SentenceTransformer;"
        f" model = SentenceTransformer({str(directory)!r})"
    )
    return 0


def _refuse_options_of_bundles(args: Any) -> None:
    defaults = build_parser().get_defaults()
    given = [name for name in _OF_BUNDLES if args[name] != defaults[name]]
    if given:
        raise ValueError(
            f"`--{given[0]}` belongs to bundles: --format {_SENTENCE_TRANSFORMERS} writes the model"
            f" alone. Received: {args[given[0]]}"
        )
