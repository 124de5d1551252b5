"""`tfde demo`: the whole road on this machine's own documentation, without any network."""

from __future__ import annotations

from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "demo",
        "Trains a small dual encoder on the documentation of the installed Python packages,"
        " measures it beside BM25, exports it, indexes, serves and asks it five questions."
        " No network, about five minutes on two cores.",
    )
    parser.add_argument("--output", default="demo", help="directory for everything it makes")
    parser.add_argument(
        "--package", action="append", default=[], help="one more package to read; repeatable"
    )
    parser.add_argument(
        "--backbone", help="a pre-trained backbone (preset or directory) instead of random weights"
    )
    parser.add_argument("--steps", type=int, help="training steps")
    return parser


def run(args: Any) -> None:
    """Runs the demo."""
    if args.steps is not None and args.steps < 1:
        raise ValueError(f"`--steps` must be at least 1. Received: {args.steps}")
    from tfde.demo.run_demo import run_demo

    show_logs()
    run_demo(args.output, packages=args.package, backbone=args.backbone, steps=args.steps)
