"""`tfde split`: a dataset directory divided anew by query, or with fewer train queries."""

from __future__ import annotations

import re
from typing import Any

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the command's parser."""
    parser = command_parser(
        "split",
        "Divides all judged queries of a dataset into train, dev and test (--ratio), or keeps its"
        " splits and a share of its train queries (--share). No test query equals or nearly equals"
        " a train query; the documents are shared.",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--output", required=True, help="the new dataset directory")
    parser.add_argument(
        "--ratio", type=str, help="train/test of at most 100 parts, such as 1/99, 5/95 or 80/20"
    )
    parser.add_argument(
        "--dev_share", type=float, default=0.1, help="with --ratio: share of train held out as dev"
    )
    parser.add_argument("--share", type=float, help="share of the train queries, such as 0.1")
    parser.add_argument("--seed", type=int, default=0, help="decides which queries")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output that holds something"
    )
    return parser


def run(args: Any) -> int:
    """Splits."""
    from tfde.data.split import split_by_ratio, split_train_share
    from tfde.errors import ConfigError
    from tfde.storage.atomic import refuse_existing

    if (args.ratio is None) == (args.share is None):
        raise ConfigError("either `ratio` or `share` must be given.")
    ratio = None if args.ratio is None else _parse_ratio(args.ratio)
    refuse_existing(args.output, overwrite=args.overwrite, flag="--overwrite")
    common = {"seed": args.seed, "overwrite": args.overwrite}
    if ratio is None:
        record = split_train_share(args.dataset, args.output, share=args.share, **common)
    else:
        record = split_by_ratio(
            args.dataset,
            args.output,
            ratio=ratio,
            dev_share=args.dev_share,
            **common,
        )
    counts = ", ".join(f"{name} {count:,}" for name, count in record["queries"].items())
    print(f"{args.output}: {counts} queries")
    for name, count in record["counts"].items():
        print(f"{name.replace('_', ' ')}: {count:,}")
    return 0


def _parse_ratio(value: str) -> tuple[int, int]:
    from tfde.errors import ConfigError

    match = re.fullmatch(r"(\d+)/(\d+)", value)
    if not match:
        raise ConfigError(f"`ratio` must be train/test, such as 1/99. Received: {value!r}")
    train, test = int(match[1]), int(match[2])
    if train + test > 100:  # two percentages that do not fit together
        raise ConfigError(
            "`ratio` must be train/test of at most 100 parts together, such as 80/20."
            f" Received: {value!r}, {train + test} parts"
        )
    return train, test
