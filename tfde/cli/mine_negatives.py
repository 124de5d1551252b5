"""`tfde mine-negatives`: the pairs of a dataset with hard negatives; after a kill, it resumes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import (
    add_bm25,
    add_lengths,
    bm25_options,
    load_encoder,
    options_of,
)
from tfde.errors import ConfigError, naming

if TYPE_CHECKING:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.negatives.candidate_sources import CandidateSource


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "mine-negatives",
        "Finds hard negatives for the pairs of a dataset and writes a pair file for training."
        " Candidates come from BM25, a model or a run; known positives, their duplicates and near"
        " duplicates are left out. An interrupted run goes on when the same command is given"
        " again.",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--split", default="train", help="whose pairs")
    parser.add_argument("--output", required=True, help="pair file, .jsonl or .jsonl.gz")
    parser.add_argument(
        "--from",
        choices=["bm25", "random"],
        help="candidates by BM25 over title and text, or drawn from the corpus",
    )
    parser.add_argument("--model", help="candidates by this model: directory, preset or checkpoint")
    parser.add_argument(
        "--index", help="an index of the model; without, the corpus is encoded and searched exactly"
    )
    parser.add_argument("--run_file", help="candidates of a TREC run, plain or .gz")
    add_bm25(parser)
    parser.add_argument("--count", type=PositiveInt, default=4, help="negatives a pair")
    parser.add_argument(
        "--min_rank", type=PositiveInt, default=1, help="first rank that may be taken, from 1"
    )
    parser.add_argument("--max_rank", type=PositiveInt, default=100, help="last such rank")
    parser.add_argument(
        "--ignore_identical_ids",
        action="store_true",
        help="leave out a document whose id is the query's, for sets whose queries are documents;"
        " one of the query's own text is never taken",
    )
    parser.add_argument(
        "--score_margin", type=float, help="how much less than the positive it must score"
    )
    parser.add_argument(
        "--relative_margin",
        type=float,
        help="the same as a share: 0.05 keeps what scores at most 0.95 of the positive",
    )
    parser.add_argument(
        "--cross_encoder",
        help="model that throws out what it takes for relevant, or makes positives of it",
    )
    parser.add_argument(
        "--max_cross_score", type=float, help="highest logit of the cross-encoder for a negative"
    )
    parser.add_argument(
        "--cross_label",
        type=str | None,
        help="for a cross-encoder with labels the one that says relevant; its scores are logarithms"
        " of this label's probability then; by default `1`, if it has one",
    )
    parser.add_argument(
        "--cross_margin", type=float, help="how much below the positive's logit it must stay"
    )
    parser.add_argument(
        "--pseudo_positives",
        type=NonNegativeInt,
        default=0,
        help="unlabelled candidates that become positives of a query at most, a pair each, because"
        " the cross-encoder takes them for relevant (RocketQA)",
    )
    parser.add_argument(
        "--min_pseudo_score", type=float, help="lowest logit of the cross-encoder for that"
    )
    parser.add_argument(
        "--unlabelled",
        action="store_true",
        help="queries that no split judges take part too, for their pseudo-positives",
    )
    parser.add_argument(
        "--choice",
        choices=["top", "random", "sampled"],
        default="top",
        help="of what is left: the best, any, or drawn by the softmax of the scores",
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="divides the scores for sampled"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument(
        "--documents",
        choices=["ids", "texts"],
        default="ids",
        help="whether the file names documents or holds their texts",
    )
    parser.add_argument(
        "--batch_size", type=PositiveInt, default=64, help="texts a batch of the model"
    )
    add_lengths(parser)
    return parser


def run(args: Any) -> int:
    """Mines."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.config.negatives import MiningRules
    from tfde.data.dataset_directory import DatasetDirectory

    given = [getattr(args, "from"), args.model, args.run_file]
    if sum(value is not None for value in given) != 1:
        raise ConfigError("candidates come from one of `from`, `model` and `run_file`; give one.")
    if args.index is not None and args.model is None:
        raise ConfigError("`index` goes with `model`.")
    rules = MiningRules(**options_of(MiningRules, args))
    dataset = DatasetDirectory(args.dataset)
    dataset.qrels_file(args.split)
    for path in (args.model, args.cross_encoder):
        if path is not None:
            check_checkpoint(path)

    from tfde.negatives.mine import mine_negatives

    source = _source(args, dataset)
    cross_encoder = None
    if args.cross_encoder is not None:
        from tfde.matching.load import load_pair_scorer

        with naming("cross_encoder"):
            cross_encoder = load_pair_scorer(args.cross_encoder)
    start = time.perf_counter()
    report = mine_negatives(
        dataset,
        source,
        args.output,
        rules,
        split=args.split,
        documents=args.documents,
        cross_encoder=cross_encoder,
        unlabelled=args.unlabelled,
        show_progress=True,
    )
    seconds = time.perf_counter() - start
    print(f"{args.output}: {report.text(rules.count)}")
    print(f"mined in {seconds:.1f} s")
    return 0


def _source(args: Any, dataset: DatasetDirectory) -> CandidateSource:
    if getattr(args, "from") == "bm25":
        from tfde.negatives.candidate_sources import Bm25Candidates

        return Bm25Candidates(**bm25_options(args))
    if getattr(args, "from") == "random":
        from tfde.negatives.candidate_sources import RandomCandidates

        return RandomCandidates(seed=args.seed)
    if args.run_file is not None:
        from tfde.negatives.candidate_sources import RunCandidates

        candidates = RunCandidates(args.run_file)
        queries = dataset.queries(None if args.unlabelled else args.split)
        if not any(query.query_id in candidates for query in queries):
            raise ConfigError(
                f"{args.run_file}: has no query of {args.dataset}, split {args.split}; a run of"
                " another split goes with `--split`."
            )
        return candidates
    from tfde.negatives.candidate_sources import ModelCandidates

    model = load_encoder(args.model, args)
    return ModelCandidates(model, index=args.index, batch_size=args.batch_size)
