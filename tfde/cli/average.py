"""`tfde average`: several trained dual encoders become one, the mean of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "average",
        "Averages the weights of models that were trained from one start, or of a model and the"
        " checkpoint it was trained from. Choose the weights on a dev split.",
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="model directory, preset or checkpoint; repeat it",
    )
    parser.add_argument(
        "--weights",
        type=float,
        nargs="+",
        help="share of each model, in their order (all alike); divided by their sum",
    )
    parser.add_argument("--output", required=True, help="new model directory")
    return parser


def run(args: Any) -> int:
    """Averages."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.storage.atomic import refuse_existing
    from tfde.storage.files import read_json

    refuse_existing(args.output, overwrite=False)
    for path in args.model:
        check_checkpoint(path)

    from tfde.towers.average import average_models
    from tfde.towers.model_card import add_training
    from tfde.towers.preset import METADATA_FILE

    mean = average_models(args.model, args.weights)
    mean.save_to_preset(args.output)
    weights = args.weights or [1.0] * len(args.model)
    shares = [weight / sum(weights) for weight in weights]
    rows = []
    for path, share in zip(args.model, shares, strict=True):
        metadata = Path(path, METADATA_FILE)
        made_by = read_json(metadata).get("fingerprint") if metadata.is_file() else None
        told = f" (`{made_by}`)" if made_by else ""  # keras-hub's metadata have none
        rows.append(f"- {share:g} of `{path}`{told}")
    text = (
        "By `tfde average`, the weighted mean of these models, whose own cards say how they were"
        " trained:\n" + "\n".join(rows) + "\n\nNothing was measured: `tfde evaluate` does."
    )
    add_training(args.output, text)
    told = " + ".join(f"{share:.3g}" for share in shares)
    print(f"{args.output}: the mean of {len(args.model)} models, {told}")
    return 0
