"""`tfde verify BUNDLE`: is it what was exported, and does it answer as it did?"""

from __future__ import annotations

from typing import Any

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "verify", "Checks a bundle's files, fingerprints and golden queries; prints what differs."
    )
    parser.add_argument("bundle", help="what tfde export wrote")
    return parser


def run(args: Any) -> int:
    """Prints what differs; exit code 1 when something does."""
    from tfde.export.bundle_directory import read_manifest

    read_manifest(args.bundle)  # before TensorFlow is imported

    from tfde.export.verify import verify_bundle

    differences = verify_bundle(args.bundle)
    for line in differences:
        print(line)
    if not differences:
        print(f"{args.bundle}: as exported")
    return 1 if differences else 0
