"""`tfde probe attention`: what a model's attention looks like between two texts, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfde.cli.names import short_name
from tfde.cli.parser import CommandParser, command_parser

KINDS = ("attention",)


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "probe",
        "Pictures of what models do. `attention`: each token's attention over the other text's, of"
        " cross-encoders as they have it, of matchers as their queries and keys would give it"
        " (pip install tfde[figures]).",
    )
    parser.add_argument("kind", choices=KINDS, help="what to look at")
    parser.add_argument(
        "--model", action="append", required=True, help="model directory; repeated: a row each"
    )
    parser.add_argument("--first", required=True, help="first text of the pair")
    parser.add_argument("--second", required=True, help="second text of the pair")
    parser.add_argument("--output", required=True, help="PNG to write")
    parser.add_argument(
        "--layer", type=int, default=-1, help="number of the layer, from 0; negative from the last"
    )
    parser.add_argument("--head", type=int | None, help="number of the head; by default their mean")
    return parser


def run(args: Any) -> int:
    """Draws."""
    from tfde.analysis.attention_probe import draw_attention, pair_attention
    from tfde.errors import ConfigError, naming, require
    from tfde.matching.load import load_pair_scorer

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("`tfde probe` draws with matplotlib: pip install tfde[figures]") from None
    require(Path(args.output).suffix == ".png", "output", "a file *.png", args.output)
    found: dict[str, Any] = {}
    for path in args.model:
        name = short_name(path, list(found))
        with naming("model"):
            model = load_pair_scorer(path)
        found[name] = pair_attention(
            model, args.first, args.second, layer=args.layer, head=args.head
        )
    head = "mean of the heads" if args.head is None else f"head {args.head}"
    draw_attention(found, args.output, title=f"attention, {head}")
    print(f"{args.output}: {', '.join(found)}")
    return 0
