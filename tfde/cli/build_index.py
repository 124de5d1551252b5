"""`tfde build-index`: embeddings become an index, whose recall is measured and printed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import add_lengths, load_encoder

if TYPE_CHECKING:
    from tfde.retrieval.tune_scann import Trial

_SCANN = (
    "kind",
    "num_leaves",
    "num_leaves_to_search",
    "training_sample_size",
    "dimensions_per_block",
    "anisotropic_quantization_threshold",
    "reorder",
)


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "build-index",
        "Builds an index, with ScaNN unless --engine says otherwise: exact below 20,000 vectors,"
        " hashing up to 100,000, a tree above. Prints its recall@10 against exact search, and the"
        " time of a query.",
    )
    parser.add_argument("--embeddings", required=True, help="directory that `tfde encode` wrote")
    parser.add_argument("--output", required=True, help="directory of the index")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--engine", choices=["scann", "exact", "faiss"], default="scann", help="what searches"
    )
    parser.add_argument(
        "--options",
        type=dict[str, Any],
        default={},
        help="the engine's own, as --options.factory IVF1024,Flat of faiss; ScaNN's are the seven"
        " that follow",
    )
    parser.add_argument(
        "--kind", choices=["exact", "hash", "tree"], help="by default decided by the size"
    )
    parser.add_argument(
        "--num_leaves", type=PositiveInt, help="leaves of the tree; by default twice the root of N"
    )
    parser.add_argument(
        "--num_leaves_to_search", type=PositiveInt, help="by default a tenth of the leaves"
    )
    parser.add_argument(
        "--training_sample_size",
        type=PositiveInt,
        help="vectors that leaves are learned from, by default 250 a leaf and 100,000 at least",
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
    parser.add_argument(
        "--target_recall",
        type=float | None,
        help="search as few leaves and candidates as find this share of the 10 best, measured on"
        " the queries of --dataset (or the sample): half of them choose, half measure",
    )
    parser.add_argument("--dataset", help="dataset directory whose queries measure the recall")
    parser.add_argument("--model", help="model that encodes them: the one of the embeddings")
    add_lengths(parser)
    return parser


def run(args: Any) -> int:
    """Builds, measures and saves."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.retrieval.embeddings import Embeddings
    from tfde.retrieval.index import index_class
    from tfde.retrieval.recall import sample_queries
    from tfde.retrieval.tune_scann import check_target, tune_scann
    from tfde.storage.atomic import refuse_existing, refuse_source

    refuse_existing(args.output, overwrite=args.overwrite, flag="--overwrite")
    refuse_source(args.output, args.embeddings, "the directory of the embeddings")
    if (args.dataset is None) != (args.model is None):
        raise ValueError("`--dataset` and `--model` belong together: it encodes the queries.")
    if args.model is not None:
        check_checkpoint(args.model)
    engine = index_class(args.engine)
    parameters = engine.parameters_of({**_scann_options(args), **args.options})
    embeddings = Embeddings.open(args.embeddings)
    tuned = args.target_recall is not None
    if tuned:
        check_target(args.target_recall, args.sample)
        parameters = parameters.to_be_tuned(embeddings.shape[0])
    if args.engine == "scann":
        parameters = parameters.resolved(*embeddings.shape)  # refuses impossible ones at once
    embeddings.verify()
    queries = None if args.dataset is None else _encode_queries(args, embeddings.fingerprint)
    if tuned and queries is not None:
        check_target(args.target_recall, len(queries))
    start = time.perf_counter()
    index: Any = engine.from_embeddings(embeddings, parameters=parameters)
    seconds = time.perf_counter() - start
    if tuned and parameters.kind == "exact":
        print(f"{embeddings.shape[0]:,} vectors are searched exactly: there is nothing to choose")
    elif tuned:
        given = queries if queries is not None else sample_queries(index.vectors(), args.sample, 0)
        tuning = tune_scann(index, given, target_recall=args.target_recall)
        index = index.searched_as(tuning.parameters)
        queries = given[1::2]  # those that had no part in the choice
        _print_trials(tuning.trials)
    measured = index.recall(10, sample=args.sample, query_embeddings=queries)
    index.save(args.output, overwrite=args.overwrite)
    rows, dim = index.shape
    print(f"{args.output}: {rows:,} x {dim}, {index}, built in {seconds:.1f} s")
    kind = "stand-ins for queries" if args.dataset is None else "queries of the dataset"
    print(
        f"recall@{measured.k} {measured.recall:.4f} against exact search,"
        f" {measured.num_queries:,} {kind}"
    )
    if args.dataset is None and args.engine == "scann" and index.parameters.kind != "exact":
        print(
            "real questions may find less, in a tree above all: --dataset and --model"
            f"{' choose and' if tuned else ''} measure with them"
        )
    print(
        f"time per query: {measured.seconds_per_single_query * 1e3:.3f} ms alone,"
        f" {measured.seconds_per_query * 1e3:.3f} ms in a batch"
        f" (exact search {measured.exact_seconds_per_query * 1e3:.3f} ms)"
    )
    return 0


def _scann_options(args: Any) -> dict[str, Any]:
    """Returns ScaNN's options, which have arguments of their own; refuses them for another."""
    if args.engine == "scann":
        return {name: args[name] for name in _SCANN}
    defaults = build_parser().get_defaults()
    given = [name for name in (*_SCANN, "target_recall") if args[name] != defaults[name]]
    if given:
        raise ValueError(
            f"`--{given[0]}` belongs to --engine scann; what {args.engine} takes is given by"
            f" `--options`. Received: {args[given[0]]}"
        )
    return {}


def _encode_queries(args: Any, fingerprint: str) -> Any:
    """Returns the embeddings of at most `--sample` queries of the dataset."""
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.errors import MismatchError, require

    model = load_encoder(args.model, args)
    if model.fingerprint() != fingerprint:
        raise MismatchError(
            f"`--model` must be the one that made the embeddings ({fingerprint})."
            f" Received: {model.fingerprint()}"
        )
    queries = list(islice(DatasetDirectory(args.dataset).queries(), args.sample))
    require(bool(queries), "--dataset", "one with queries", args.dataset)
    return model.encode_queries([query.text for query in queries])


def _print_trials(trials: Sequence[Trial]) -> None:
    print(f"{'leaves':>7} {'candidates':>10} {'recall@10':>9} {'ms a query':>10}")
    for leaves, reorder, recall, seconds in trials:
        print(f"{leaves or '-':>7} {reorder:>10} {recall:>9.4f} {seconds * 1e3:>10.3f}")
    print(
        f"chosen is the fastest: {trials[0].leaves or 'no'} leaves, {trials[0].reorder} candidates"
    )
