"""Options of commands that can give documents a share of their parents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from tfde.cli.parser import CommandParser

if TYPE_CHECKING:
    from tfde.config import ParentConfig


def add_parents(parser: CommandParser) -> None:
    """Adds the options `--parent_weight`, `--parent_separator`, `--parent_max_length_tokens`."""
    parser.add_argument(
        "--parent_weight",
        type=PositiveFloat,
        help="add so much of the embedding of its parent to that of each document, whose id is"
        " PARENT.PART; a parent is all its documents in a row. 0.5 is a good start",
    )
    parser.add_argument(
        "--parent_separator", default=".", help="what stands between PARENT and PART (.)"
    )
    parser.add_argument(
        "--parent_max_length_tokens", type=PositiveInt, default=256, help="longest parent"
    )


def parent_config(args: Any) -> ParentConfig | None:
    """Returns what the options ask for; `None` without `--parent_weight`."""
    from tfde.config import ParentConfig

    if args.parent_weight is None:
        return None
    return ParentConfig(args.parent_weight, args.parent_separator, args.parent_max_length_tokens)
