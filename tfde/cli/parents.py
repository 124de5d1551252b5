"""Options of commands that can give documents a share of their parents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from tfde.cli.parser import CommandParser

if TYPE_CHECKING:
    from tfde.config import ParentConfig


_SEPARATOR, _MAX_LENGTH = ".", 256


def add_parents(parser: CommandParser) -> None:
    """Adds the options `--parent_weight`, `--parent_separator`, `--parent_max_length_tokens`."""
    parser.add_argument(
        "--parent_weight",
        type=PositiveFloat,
        help="add so much of the embedding of its parent to that of each document, whose id is"
        " PARENT.PART; a parent is all its documents in a row. 0.5 is a good start",
    )
    parser.add_argument(
        "--parent_separator", default=_SEPARATOR, help="what stands between PARENT and PART (.)"
    )
    parser.add_argument(
        "--parent_max_length_tokens", type=PositiveInt, default=_MAX_LENGTH, help="longest parent"
    )


def parent_config(args: Any) -> ParentConfig | None:
    """Returns what the options ask for; `None` without `--parent_weight`."""
    from tfde.config import ParentConfig
    from tfde.errors import require

    if args.parent_weight is None:
        for name, default in (("separator", _SEPARATOR), ("max_length_tokens", _MAX_LENGTH)):
            value = getattr(args, f"parent_{name}")
            require(value == default, f"parent_{name}", "left out without `parent_weight`", value)
        return None
    return ParentConfig(args.parent_weight, args.parent_separator, args.parent_max_length_tokens)
