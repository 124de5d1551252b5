"""Loading a model for a command that may cut texts elsewhere than the model was trained with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser

if TYPE_CHECKING:
    from tfde.towers.dual_encoder import DualEncoder


def add_lengths(parser: CommandParser) -> None:
    """Adds the options `--query_max_length_tokens` and `--document_max_length_tokens`."""
    for side in ("query", "document"):
        parser.add_argument(
            f"--{side}_max_length_tokens",
            type=PositiveInt,
            help=f"longest {side} in place of the model's own, special tokens included; embeddings,"
            " indexes and queries go together only where all were made with the same lengths",
        )


def load_model(path: str, args: Any, *, dtype: str | None = None) -> DualEncoder:
    """Returns the model at `path`, with the lengths that `args` gives.

    Raises:
        ConfigError: as `DualEncoder.load` and `DualEncoder.set_max_lengths`.
    """
    from tfde.checkpoints.preset_files import check_checkpoint

    check_checkpoint(path)  # before TensorFlow is imported

    from tfde.towers.dual_encoder import DualEncoder

    model = DualEncoder.load(path, dtype=dtype)
    model.set_max_lengths(
        query_max_length_tokens=args.query_max_length_tokens,
        document_max_length_tokens=args.document_max_length_tokens,
    )
    return model


def tell_cut_texts(model: DualEncoder) -> None:
    """Says in one line on stderr how many texts the model cut, if any, and how much they lost."""
    from tfde.text.cut_texts import cut_line

    counts = model.cut_texts()
    if any(part.cut for part in counts):
        print(f"tfde: {cut_line(counts)}", file=sys.stderr)
