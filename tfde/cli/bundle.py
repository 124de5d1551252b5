"""`tfde bundle ACTION`: versions of a bundle come and go while it is served."""

from __future__ import annotations

import time
from typing import Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import (
    Action,
    CommandParser,
    actions_parser,
    command_parser,
    run_action,
)
from tfde.errors import ServerError, require

_LOOK_S = 0.2  # between questions to a server


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    return actions_parser(
        "bundle",
        "Installs versions into a bundle that is served, and takes them back. All models of a"
        " bundle change together: tfde serve answers with the version before until one is whole.",
        _ACTIONS,
    )


def run(args: Any) -> int:
    """Runs one of the actions."""
    return run_action(_ACTIONS, args)


def _install_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("new", help="what tfde export wrote, with a higher --version")
    parser.add_argument("bundle", help="the bundle that is served")
    _add_target(parser)
    return parser


def _roll_back_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("bundle", help="the bundle that is served")
    parser.add_argument(
        "--to",
        type=PositiveInt,
        help="the version, also one that was taken back (default: that before the live one)",
    )
    _add_target(parser)
    return parser


def _list_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("bundle", help="a bundle")
    return parser


def _remove_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("bundle", help="the bundle that is served")
    parser.add_argument("--version", type=PositiveInt, required=True, help="one that is not live")
    return parser


def _add_target(parser: CommandParser) -> None:
    parser.add_argument(
        "--target",
        metavar="HOST:PORT",
        help="gRPC address of a server of the bundle: wait until it answers with the version",
    )
    parser.add_argument("--timeout_s", type=float, default=600.0, help="how long to wait for it")


def _install(args: Any) -> None:
    from tfde.export.install_bundle import install_bundle

    _check_target(args)
    _tell(args, install_bundle(args.new, args.bundle))


def _roll_back(args: Any) -> None:
    from tfde.export.install_bundle import roll_back_bundle

    _check_target(args)
    _tell(args, roll_back_bundle(args.bundle, args.to))


def _remove(args: Any) -> None:
    from tfde.export.install_bundle import remove_version

    remove_version(args.bundle, args.version)
    print(f"{args.bundle}: version {args.version} is removed")


def _list(args: Any) -> None:
    from tfde.export.bundle_directory import bundle_versions

    rows = [
        (
            str(version.number),
            version.state,
            version.manifest["towers_fingerprint"],
            f"{version.manifest.get('documents', 0):,}",
        )
        for version in bundle_versions(args.bundle).values()
    ]
    for row in [("version", "state", "model", "documents"), *rows]:
        print("{:>7}  {:<10}  {:<16}  {:>9}".format(*row))


def _check_target(args: Any) -> None:
    """Refuses what cannot be waited for before anything changes.

    Raises:
        ConfigError: it is no gRPC address.
        ServerError: no server of the bundle answers there.
    """
    from tfde.export.bundle_directory import bundle_versions
    from tfde.serving.client import Client

    versions = bundle_versions(args.bundle)
    if args.target is not None:
        plain = "/" not in args.target
        require(plain, "--target", "HOST:PORT of the gRPC port", args.target)
        with Client(args.target) as client:
            if not client.served(versions[max(versions)].models):
                raise ServerError(f"{args.target}: serves no model of {args.bundle}.")


def _tell(args: Any, version: int) -> None:
    print(f"{args.bundle}: version {version} is live", flush=True)
    if args.target is not None:
        seconds = _await(args, version)
        print(f"{args.target}: answers with version {version}, after {seconds:.1f} s")


def _await(args: Any, version: int) -> float:
    """Waits until a server answers with a version, with all models that it serves of the bundle."""
    from tfde.export.bundle_directory import bundle_versions
    from tfde.serving.client import Client

    models = bundle_versions(args.bundle)[version].models
    start = time.monotonic()
    with Client(args.target) as client:
        while True:
            states = {name: client.status(name) for name in client.served(models)}
            if states and all(_latest(state) == version for state in states.values()):
                return time.monotonic() - start
            for name, state in states.items():
                if state.get(version, "").startswith("END: "):
                    raise ServerError(
                        f"{args.target}: version {version} of {name} cannot be loaded, the version"
                        f" before is served ({state[version].removeprefix('END: ')})"
                    )
            if time.monotonic() - start > args.timeout_s:
                raise ServerError(
                    f"{args.target}: version {version} is live in {args.bundle}, and not served"
                    f" after {args.timeout_s:g} s; its log says why. A server with --index keeps"
                    f" the version that it began with. Received: {states or 'none of its models'}"
                )
            time.sleep(_LOOK_S)


def _latest(states: dict[int, str]) -> int | None:
    return max((number for number, state in states.items() if state == "AVAILABLE"), default=None)


_ACTIONS: dict[str, Action] = {
    "install": (
        _install_parser,
        "verify a new version, copy it beside the others, make it live",
        _install,
    ),
    "rollback": (
        _roll_back_parser,
        "make the version before, or another one, live again",
        _roll_back,
    ),
    "list": (_list_parser, "print the versions", _list),
    "remove": (_remove_parser, "remove a version that is not live from the disk", _remove),
}
