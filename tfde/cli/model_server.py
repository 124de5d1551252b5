"""`tfde-model-server`: takes tensorflow_model_server's flags and serves as it does."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tfde.cli.logs import limit_logs, quiet_libraries, show_logs
from tfde.cli.quick_imports import quick_imports
from tfde.serving.server.limits import MODEL_SERVER, Limits, with_descriptors
from tfde.serving.server.options import NO_EFFECT, UNSUPPORTED, ServerOptions

# What tensorflow_model_server returns for any error.
_FAILED = 255


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong in one line."""
        _fail(f"INVALID_ARGUMENT: {message} ({self.prog} --help lists the flags)")
        raise SystemExit(_FAILED)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags."""
    parser = _Parser(
        "tfde-model-server",
        description="Serves SavedModels over TensorFlow Serving's gRPC and REST protocols. Takes"
        " the flags of tensorflow_model_server, as --flag=value or --flag value.",
        epilog="Taken without effect: "
        + ", ".join(NO_EFFECT)
        + ". Refused where they are not at their default: "
        + ", ".join(UNSUPPORTED)
        + ".",
        allow_abbrev=False,
    )
    for field in dataclasses.fields(ServerOptions):
        text = f"{field.metadata['help']} (default: {field.default!r})"
        _add_flag(parser, field.name, field.default, text)
    for field in dataclasses.fields(Limits):
        default = getattr(MODEL_SERVER, field.name)
        text = f"{field.metadata['help']} (this server's own; default: {default!r})"
        _add_flag(parser, field.name, default, text)
    for name, default in {**NO_EFFECT, **UNSUPPORTED}.items():
        _add_flag(parser, name, default, argparse.SUPPRESS)
    parser.add_argument("--version", action="store_true", help="print versions and end")
    parser.add_argument(
        "--host", default="0.0.0.0", help="address to listen on (this server's own flag)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT.

    Args:
        argv: Arguments without the program's name. `None` takes those of the process.

    Returns:
        The exit code: 0 stopped by a signal, 255 it could not start.
    """
    args = vars(build_parser().parse_args(argv))
    if args.pop("version"):
        return _print_versions()
    quiet_libraries()
    with quick_imports():
        from tfde.environment import load_scann_ops
        from tfde.errors import TfdeError
        from tfde.serving.server.model_server import end_process
        from tfde.serving.server.status import StatusError

        load_scann_ops()

    try:
        server = _server(args)
        server.start()
    except KeyboardInterrupt:  # while models were loading, or waited for
        return _fail("CANCELLED: interrupted")
    except StatusError as error:
        return _fail(f"{error.code.name}: {error.message}")
    except (OSError, TfdeError) as error:
        return _fail(f"INVALID_ARGUMENT: {error}")
    if not server.wait():
        end_process(0)
    return 0


def _server(args: dict[str, Any]) -> Any:
    from tfde.serving.server.model_server import ModelServer
    from tfde.serving.server.settings import check_options
    from tfde.serving.server.status import invalid_argument, naming
    from tfde.serving.server.versions import model_config, read_server_config, server_config

    show_logs()
    limit_logs()
    host = args.pop("host")
    for name, default in UNSUPPORTED.items():
        if args[name] != default:
            raise invalid_argument(f"this server has no --{name}")
    for name in {**NO_EFFECT, **UNSUPPORTED}:
        del args[name]
    given = {field.name: args.pop(field.name) for field in dataclasses.fields(Limits)}
    limits = with_descriptors(Limits(**given))
    options = ServerOptions(**args)
    check_options(options)
    if options.model_config_file:
        with naming("--model_config_file"):
            config = read_server_config(options.model_config_file)
    elif options.model_base_path:
        config = server_config(model_config(options.model_name, options.model_base_path))
    else:
        raise invalid_argument(
            "Both server_options.model_base_path and server_options.model_config_file are empty!"
        )
    return ModelServer(config, options, host=host, limits=limits)


def _add_flag(parser: argparse.ArgumentParser, name: str, default: Any, text: str) -> None:
    if isinstance(default, bool):
        parser.add_argument(
            f"--{name}", type=_boolean, nargs="?", const=True, default=default, help=text
        )
    else:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be true or false. Received: {text!r}")
    return values[text.lower()]


def _print_versions() -> int:
    from importlib.metadata import version

    from tfde.version import __version__

    print(f"TensorFlow ModelServer: tfde {__version__}")
    print(f"TensorFlow Library: {version('tensorflow')}")
    return 0


def _fail(message: str) -> int:
    print(f"Failed to start server. Error: {message}", file=sys.stderr)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main())
