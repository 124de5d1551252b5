"""`tfde chunk`: a corpus of long documents becomes one of passages."""

from __future__ import annotations

from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import add_separator


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "chunk",
        "Cuts the documents of a dataset directory into passages that a model reads whole, at"
        " headings, paragraphs, sentences or words. Judgements stay with the documents:"
        " `tfde evaluate --max_passage` ranks these by their best passage.",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument(
        "--model", required=True, help="whose tokens count: model directory, preset or checkpoint"
    )
    parser.add_argument("--output", required=True, help="the new dataset directory")
    parser.add_argument(
        "--max_length_tokens",
        type=PositiveInt,
        help="longest passage, title and special tokens included; by default what the model reads",
    )
    parser.add_argument(
        "--overlap_tokens",
        type=NonNegativeInt,
        default=0,
        help="at most so many tokens of a passage's end begin the next",
    )
    add_separator(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output that holds something"
    )
    return parser


def run(args: Any) -> int:
    """Cuts."""
    from tfde.data.chunk import chunk_dataset
    from tfde.towers.checkpoint_rules import load_preprocessor

    counts = chunk_dataset(
        args.dataset,
        args.output,
        load_preprocessor(args.model),
        max_length_tokens=args.max_length_tokens,
        overlap_tokens=args.overlap_tokens,
        separator=args.parent_separator,
        overwrite=args.overwrite,
        show_progress=True,
    )
    print(
        f"{args.output}: {counts.passages:,} passages of {counts.documents:,} documents, of which"
        f" {counts.cut:,} were cut"
    )
    for split in counts.left_out:
        print(f"left out: training pairs of {split}, which name whole documents")
    return 0
