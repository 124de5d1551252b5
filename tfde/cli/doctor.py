"""`tfde doctor`: is everything here that tfde needs, and does it load?"""

from __future__ import annotations

from typing import Any

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "doctor",
        "Looks at the machine, at the packages and their versions, whether they load, and at the"
        " folders that environment variables name. Exit code 1 when something must be mended; put"
        " what it prints into a bug report.",
    )
    parser.add_argument("--all", action="store_true", help="print what is right too")
    return parser


def run(args: Any) -> int:
    """Prints what was found; exit code 1 when something is wrong."""
    from tfde.environment import check_folders, check_loading, check_packages, describe_machine

    print(describe_machine())
    wrong = right = 0
    for check in (check_packages, check_loading, check_folders):
        for finding in check():
            wrong += finding.state == "wrong"
            right += finding.state == "ok"
            if args.all or finding.state != "ok":
                print(f"{finding.state:>5}  {finding.line}", flush=True)
    print(f"{right} as they should be, {wrong} to mend")
    return 1 if wrong else 0
