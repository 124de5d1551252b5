"""Options of commands that know passages and the documents that these are parts of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from tfde.cli.parser import CommandParser

if TYPE_CHECKING:
    from tfde.config.model import ParentConfig
    from tfde.types import Run


_SEPARATOR, _MAX_LENGTH = ".", 256
# So many passages are looked at for each document that is asked for.
_PASSAGES_A_DOCUMENT = 10


def add_parents(parser: CommandParser) -> None:
    """Adds the options `--parent_weight`, `--parent_separator`, `--parent_max_length_tokens`."""
    parser.add_argument(
        "--parent_weight",
        type=PositiveFloat,
        help="add so much of the embedding of its parent to that of each document, whose id is"
        " PARENT.PART; a parent is all its documents in a row. 0.5 is a good start",
    )
    add_separator(parser)
    parser.add_argument(
        "--parent_max_length_tokens", type=PositiveInt, default=_MAX_LENGTH, help="longest parent"
    )


def add_separator(parser: CommandParser) -> None:
    """Adds the option `--parent_separator`."""
    parser.add_argument(
        "--parent_separator", default=_SEPARATOR, help="what stands between PARENT and PART (.)"
    )


def add_max_passage(parser: CommandParser) -> None:
    """Adds the option `--max_passage`."""
    parser.add_argument(
        "--max_passage",
        action="store_true",
        help="the corpus holds passages with ids PARENT.PART (`tfde chunk`): give their parents,"
        " each with the score of its best passage",
    )


def passages_wanted(args: Any, documents: int) -> int:
    """Returns how many of a corpus to ask for, so that there are so many documents."""
    return documents * _PASSAGES_A_DOCUMENT if args.max_passage else documents


def fold_passages(args: Any, run: Run, documents: int | None) -> Run:
    """Returns the run of parents, if the options ask for it; tells where there are too few.

    Args:
        args: With `max_passage` and `parent_separator`.
        run: Of passages; as many of them as `passages_wanted` said.
        documents: How many documents a query was to have; `None` for a run that is what it is.

    Raises:
        ConfigError: an id is not of the form PARENT.PART.
    """
    from tfde.data.ranking import best_passages

    if not args.max_passage:
        return run
    folded = {q: best_passages(found, args.parent_separator, documents) for q, found in run.items()}
    if documents is not None:
        wanted = passages_wanted(args, documents)
        few = sum(len(folded[q]) < documents and len(run[q]) == wanted for q in run)
        if few:
            print(
                f"tfde: {few:,} of {len(run):,} queries have fewer than {documents:,} documents"
                f" among their best {wanted:,} passages; a larger -k looks at more",
                file=sys.stderr,
            )
    return folded


def parent_config(args: Any) -> ParentConfig | None:
    """Returns what the options ask for; `None` without `--parent_weight`."""
    from tfde.config.model import ParentConfig
    from tfde.errors import require

    if args.parent_weight is None:
        given: dict[str, object] = {"max_length_tokens": _MAX_LENGTH}
        if not getattr(args, "max_passage", False):
            given["separator"] = _SEPARATOR
        for name, default in given.items():
            value = getattr(args, f"parent_{name}")
            require(value == default, f"parent_{name}", "left out without `parent_weight`", value)
        return None
    return ParentConfig(args.parent_weight, args.parent_separator, args.parent_max_length_tokens)
