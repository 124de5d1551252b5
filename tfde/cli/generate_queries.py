"""`tfde generate-queries`: queries for every document of a corpus; after a kill, it resumes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import options_of

if TYPE_CHECKING:
    from tfde.config.negatives import GenerationRules
    from tfde.negatives.candidate_sources import CandidateSource
    from tfde.negatives.generate_queries import QueryGenerator


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "generate-queries",
        "Lets a sequence-to-sequence model write queries for every document of a corpus: training"
        " pairs for a recipe (GenQ), or a dataset whose documents hold their queries, for BM25"
        " (docT5query). What is drawn for a document depends on its id and the seed alone. An"
        " interrupted run goes on when the same command is given again.",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory; its corpus is enough")
    parser.add_argument(
        "--model",
        required=True,
        help="keras-hub preset of a sequence-to-sequence model (directory, name or handle), or a"
        " SavedModel whose `serving_default` takes `text` [None] string, and may take `seed`"
        " [None] int64, and gives `queries` [None, N] string; it cuts and draws in its own way",
    )
    parser.add_argument(
        "--output", required=True, help="pair file, .jsonl or .jsonl.gz; or dataset directory"
    )
    parser.add_argument(
        "--as",
        choices=["pairs", "expansion"],
        default="pairs",
        help="a pair file, or a dataset directory whose texts end with their queries",
    )
    parser.add_argument("--queries_per_document", type=PositiveInt, default=5, help="how many")
    parser.add_argument(
        "--query_max_length_tokens", type=PositiveInt, default=32, help="longest query"
    )
    parser.add_argument(
        "--document_max_length_tokens",
        type=PositiveInt,
        default=256,
        help="what the model reads of a document",
    )
    parser.add_argument(
        "--document_prompt", default="", help="put before every document, e.g. 'ask: '"
    )
    parser.add_argument(
        "--top_k",
        type=PositiveInt,
        default=10,
        help="draw each token from so many most probable ones; 1 takes the most probable",
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="divides the logits")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument(
        "--keep_rank",
        type=PositiveInt,
        help="keep a query only if its document is among the first so many that it finds",
    )
    parser.add_argument(
        "--by", help="who finds them: bm25 (the default), or a model that encodes texts"
    )
    parser.add_argument("--batch_size", type=PositiveInt, default=16, help="documents a batch")
    return parser


def run(args: Any) -> int:
    """Generates."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.config.negatives import GenerationRules
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.errors import ConfigError

    if args.by is not None and args.keep_rank is None:
        raise ConfigError("`by` goes with `keep_rank`.")
    rules = GenerationRules(**options_of(GenerationRules, args))
    dataset = DatasetDirectory(args.dataset)
    for path in (args.model, None if args.by == "bm25" else args.by):
        if path is not None:
            check_checkpoint(path)

    from tfde.negatives.generate_queries import generate_queries

    generator = _generator(args, rules)
    source = None if args.keep_rank is None else _source(args)
    start = time.perf_counter()
    report = generate_queries(
        dataset,
        generator,
        args.output,
        form=getattr(args, "as"),
        keep_rank=args.keep_rank,
        source=source,
        show_progress=True,
    )
    seconds = time.perf_counter() - start
    print(
        f"{args.output}: {report.queries:,} queries for {report.documents:,} documents,"
        f" {report.bare:,} of them with none, {seconds:.1f} s"
    )
    print(
        f"left out: {report.empty:,} empty, {report.repeated:,} repeated,"
        f" {report.missed:,} that do not find their document"
    )
    return 0


def _generator(args: Any, rules: GenerationRules) -> QueryGenerator:
    if Path(args.model, "saved_model.pb").is_file():
        from tfde.negatives.saved_model_generator import SavedModelGenerator

        return SavedModelGenerator(args.model, rules, batch_size=args.batch_size)
    from tfde.negatives.keras_hub_generator import KerasHubGenerator

    return KerasHubGenerator(args.model, rules, batch_size=args.batch_size)


def _source(args: Any) -> CandidateSource:
    if args.by in (None, "bm25"):
        from tfde.negatives.candidate_sources import Bm25Candidates

        return Bm25Candidates()
    from tfde.negatives.candidate_sources import ModelCandidates
    from tfde.towers.dual_encoder import DualEncoder

    return ModelCandidates(DualEncoder.load(args.by))
