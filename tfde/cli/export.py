"""`tfde export`: model (and index) to a bundle, or model to a sentence-transformers directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import add_lengths, load_encoder, load_model

if TYPE_CHECKING:
    import numpy as np

    from tfde.config.engines import Engine
    from tfde.export.saved_encoder import SavedEncoder
    from tfde.towers.dual_encoder import DualEncoder
    from tfde.types import Document, Query

MAX_GOLDEN = 1000
_SENTENCE_TRANSFORMERS = "sentence-transformers"
_ENGINES: dict[str, tuple[Engine, ...]] = {
    "bundle": (),
    "openvino": ("openvino",),
    "onnx": ("onnxruntime",),
}
_OF_BUNDLES = (
    "shard",
    "index",
    "embeddings",
    "dataset",
    "version",
    "golden",
    "scann",
    "retriever_dtype",
    "target_recall",
    "precision",
    "tpu",
)
_OF_INDEXES = ("target_recall", "shard")
_RECALL_QUERIES = 1000
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
        choices=[*_ENGINES, _SENTENCE_TRANSFORMERS],
        default="bundle",
        help="what is written; openvino, onnx: a bundle with the towers for OpenVINO or ONNX"
        " Runtime beside its SavedModels",
    )
    parser.add_argument("--index", help="index directory (tfde build-index)")
    parser.add_argument("--embeddings", help="embeddings directory (tfde encode)")
    parser.add_argument(
        "--shard", help="only a part of the documents, as 1/3: for several servers of one index"
    )
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
        "--retriever_dtype",
        choices=["float32", "bfloat16", "int8"],
        default="float32",
        help="how the retrievers of ordinary ops store embeddings; bfloat16, int8: half the bytes",
    )
    parser.add_argument(
        "--target_recall",
        type=float | None,
        help="export the partitioned retriever too: it searches the part of the corpus in which"
        " this share of the 10 best documents is found, as measured on the dataset's queries",
    )
    parser.add_argument(
        "--precision",
        choices=list(_DTYPES),
        default=_AS_IT_IS,
        help="what the towers compute in; int8: matrices stored in 8 bits, computed in bfloat16",
    )
    parser.add_argument(
        "--tpu",
        action="store_true",
        help="encoders alone, for a converter to TPUs: rows of one length, and their function under"
        " the alias tpu_func",
    )
    add_lengths(parser)
    return parser


def run(args: Any) -> int:
    """Exports."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.storage.atomic import refuse_existing

    check_checkpoint(args.model)
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
    if args.shard is not None:
        _read_shard(args.shard)
    for name in _OF_INDEXES:
        if args[name] is not None and not (args.index or args.embeddings):
            raise ValueError(
                f"`--{name}` needs `--index` or `--embeddings`. Received: {args[name]} alone"
            )
    if args.tpu and (args.index or args.embeddings):
        raise ValueError(
            "`--tpu` exports the encoders alone. Received: an index or embeddings; export them"
            " without it, for the host"
        )
    if _ENGINES[args.format]:
        _check_engines(args)
    refuse_existing(args.output, overwrite=False)
    return _export_bundle(args)


def _check_engines(args: Any) -> None:
    """Refuses what the towers of `--format` cannot be."""
    from tfde.engines.tower_engine import require_engine
    from tfde.errors import require
    from tfde.export.bundle_directory import is_saved_encoder

    beside = f"beside --format {args.format}"
    precisions = [_AS_IT_IS, "float32", *(["bfloat16"] if args.format == "openvino" else [])]
    rule = f"one of {', '.join(precisions)} {beside}"
    require(args.precision in precisions, "--precision", rule, args.precision)
    require(not args.tpu, "--tpu", f"absent {beside}", args.tpu)
    rule = f"a model {beside}, not a bundle or another SavedModel"
    require(not is_saved_encoder(args.model), "--model", rule, args.model)
    for engine in _ENGINES[args.format]:
        require_engine(engine, writes=True)


def _export_bundle(args: Any) -> int:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.errors import ConfigError
    from tfde.export.bundle_directory import read_manifest
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.live.live_index import LiveIndex
    from tfde.retrieval.live.load_index import load_index

    show_logs()
    dataset = DatasetDirectory(args.dataset) if args.dataset else None
    golden_queries: list[Query] = []
    recall_queries: list[Query] = []
    if dataset and dataset.has_queries:  # a corpus alone has none
        golden_queries = list(islice(dataset.queries(), args.golden))
        if args.target_recall is not None:
            recall_queries = list(islice(dataset.queries(), _RECALL_QUERIES))
    index: Any = None
    documents: Iterable[Document] | None = dataset.documents() if dataset else None
    if args.index:
        index = load_index(args.index)
        if isinstance(index, LiveIndex):
            raise ConfigError(
                f"{args.index}: was changed since it was built; run"
                f" `tfde index compact {args.index}` before the export."
            )
        documents = _documents(args.index, index.doc_ids, documents)
    elif args.embeddings:
        index = Embeddings.open(args.embeddings)
    if args.shard is not None:
        index = _part_of(index, args.shard)

    from tfde.export.bundle import export_bundle

    bundle = export_bundle(
        _load(args),
        index,
        args.output,
        documents=documents,
        golden_queries=golden_queries,
        version=args.version,
        scann=args.scann,
        int8_weights=args.precision == "int8",
        tpu=args.tpu,
        engines=_ENGINES[args.format],
        retriever_dtype=args.retriever_dtype,
        target_recall=args.target_recall,
        recall_queries=recall_queries,
        model_card=None if _cuts_elsewhere(args) else _card(args.model),
    )
    print(f"bundle: {bundle}")
    if index is None:
        taken = "" if dataset is None else "; of --dataset it has the golden queries"
        print(
            "without --index (tfde build-index) or --embeddings (tfde encode) it holds the"
            f" encoders alone, so search has nothing to ask{taken}"
        )
    elif documents is None:
        print("without --dataset it holds no texts: hits are ids alone")
    for engine, about in read_manifest(bundle)["engines"].items():
        for name, tower in about["models"].items():
            print(f"{name} in {engine} {about['version']}: {_how_it_does(tower)}")
    if found := read_manifest(bundle)["retrievers"].get("retriever_partitioned"):
        queries = "stand-ins for queries" if found["sampled_queries"] else "queries of the dataset"
        print(
            f"retriever_partitioned: searches {found['leaves_to_search']} of {found['leaves']}"
            f" leaves; recall@10 {found['recall_at_10']:.4f} on {found['recall_queries']} {queries}"
        )
    print(f"serve it: tfde serve {bundle}")
    return 0


def _how_it_does(tower: Mapping[str, float]) -> str:
    """Returns what the manifest says of a tower in another engine, in words."""
    times = (
        f"{use} {tower[f'{use}_ms']:.2f} ms, TensorFlow {tower[f'tensorflow_{use}_ms']:.2f}"
        for use in ("query", "document")
    )
    return f"equal within {tower['max_difference']:.0e}; {'; '.join(times)}"


def _load(args: Any) -> DualEncoder | SavedEncoder:
    from tfde.errors import require
    from tfde.export.bundle_directory import is_saved_encoder

    if not is_saved_encoder(args.model):
        return load_model(args.model, args, dtype=_DTYPES[args.precision])
    rule = f"{_AS_IT_IS} for a SavedModel, which is taken as it is"
    require(args.precision == _AS_IT_IS, "precision", rule, args.precision)
    return load_encoder(args.model, args)


def _documents(
    path: str, doc_ids: Sequence[str], others: Iterable[Document] | None
) -> Iterable[Document] | None:
    """Returns the texts of an index: those that came with its changes before those of a dataset."""
    from tfde.retrieval.live.live_index import LiveIndex

    with LiveIndex.open(path, verify=False) as live:
        own = live.documents(doc_ids)
    if others is None:
        return own.values() if len(own) == len(doc_ids) else None
    return chain(own.values(), (other for other in others if other.doc_id not in own))


def _cuts_elsewhere(args: Any) -> bool:
    """Whether lengths are given that the model's own card does not have."""
    return (args.query_max_length_tokens, args.document_max_length_tokens) != (None, None)


def _card(model: str) -> str | None:
    """Returns the card of a model directory; checkpoints of others have their own, if any."""
    from tfde.towers.model_card import CARD_FILE
    from tfde.towers.preset import is_preset

    path = Path(model) / CARD_FILE
    return path.read_text("utf-8") if is_preset(model) and path.is_file() else None


def _export_sentence_transformers(args: Any) -> int:
    from tfde.export.sentence_transformers import export_sentence_transformers, limitations

    show_logs()
    model = load_model(args.model, args)
    directory = export_sentence_transformers(model, args.output, model_card=_card(args.model))
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


def _read_shard(text: str) -> tuple[int, int]:
    """Returns number and count of `1/3`."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"`--shard` must be as 1/3, 2/3 or 3/3. Received: {text!r}")
    return int(found[1]), int(found[2])


def _part_of(index: Any, shard: str) -> Any:
    """Returns an index of every n-th document, so that the parts are alike in any order."""
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.exact_index import ExactIndex

    number, count = _read_shard(shard)
    # Not Embeddings.read: a shard is for what is too large for one machine.
    parts = index.shards() if isinstance(index, Embeddings) else [index.vectors()]
    ids = list(index.doc_ids)[number - 1 :: count]
    if not ids:
        raise ValueError(
            f"`--shard`: the index has {len(index.doc_ids)} documents. Received: {shard}"
        )
    print(f"shard {shard}: {len(ids)} of {len(index.doc_ids)} documents")
    part = _every(parts, number - 1, count)
    if isinstance(index, Embeddings):
        return ExactIndex.build(part, ids, fingerprint=index.fingerprint)
    return index.rebuilt([part], ids)


def _every(parts: Sequence[Any], first: int, count: int) -> np.ndarray:
    """Returns a copy of rows `first`, `first + count`, ... of parts that lie one after another."""
    import numpy as np

    rows, start = [], 0
    for part in parts:
        rows.append(np.asarray(part[(first - start) % count :: count], np.float32))
        start += len(part)
    return np.concatenate(rows)
