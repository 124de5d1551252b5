"""`tfde serve BUNDLE`: serves a bundle over gRPC and REST, as TensorFlow Serving does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfde.cli.logs import show_logs
from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "serve", "Serves a bundle over TensorFlow Serving's gRPC and REST protocols."
    )
    parser.add_argument("bundle", help="what tfde export wrote")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all interfaces"
    )
    parser.add_argument("--port", type=int, default=8500, help="gRPC port; 0 takes a free one")
    parser.add_argument(
        "--rest_api_port", type=int, default=8501, help="REST port; 0 takes a free one"
    )
    return parser


def run(args: Any) -> int:
    """Serves until SIGTERM or SIGINT."""
    for name in ("port", "rest_api_port"):
        if not 0 <= getattr(args, name) <= 65535:
            raise ValueError(f"`--{name}` must be in [0, 65535]. Received: {getattr(args, name)}")
    if not Path(args.bundle, "models.config").is_file():
        raise FileNotFoundError(f"{args.bundle}: no models.config there, so no bundle.")

    from tfde.serving.bundle_models import bundle_models
    from tfde.serving.server.model_server import ModelServer

    show_logs()
    server = ModelServer(
        bundle_models(args.bundle, scann=_has_scann_ops()),
        host=args.host,
        port=args.port,
        rest_api_port=args.rest_api_port,
    )
    server.start()
    target = f"{'localhost' if args.host in ('0.0.0.0', '::') else args.host}:{server.port}"
    print(
        f"ready: gRPC {args.host}:{server.port}, REST http://{args.host}:{server.rest_api_port};"
        f' ask it: tfde query --target {target} "your question"',
        flush=True,
    )
    server.wait()
    return 0


def _has_scann_ops() -> bool:
    """Loads ScaNN's ops into TensorFlow; returns whether this machine has them."""
    try:
        import scann.scann_ops.py.scann_ops  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
