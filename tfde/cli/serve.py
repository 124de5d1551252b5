"""`tfde serve BUNDLE`: serves a bundle over gRPC and REST, as TensorFlow Serving does."""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.logs import limit_logs, show_logs
from tfde.cli.main import failed
from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.quick_imports import quick_imports
from tfde.cli.shared_options import add_engine
from tfde.errors import require
from tfde.serving.server.limits import Limits, with_descriptors

if TYPE_CHECKING:
    from tfde.serving.server.model_server import StopRequest

_STOCK = "tensorflow_model_server"
_log = logging.getLogger(__name__)
_FEW_NUMBERS = 2**23  # of all vectors: 20,000 documents of 384 dimensions
_MAX_WAITING = 256  # gRPC requests beyond those that hold a thread; later ones are refused


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
    parser.add_argument(
        "--http_port",
        type=int,
        default=8502,
        help="port of the search page, /v1/search and /v1/embeddings; 0 takes a free one",
    )
    parser.add_argument(
        "--retriever",
        help="the model that search asks: retriever (the default, where it is served),"
        " retriever_partitioned or retriever_scann",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="MODEL",
        help="serve these models of the bundle alone, which starts sooner and takes less memory:"
        " `BUNDLE --models retriever documents` is what search needs (default: all)",
    )
    parser.add_argument(
        "--index",
        help="search this index directory with the bundle's towers, instead of a retriever: it may"
        " change while it is searched",
    )
    parser.add_argument(
        "--admin_key_file",
        help="file with the key of the calls that change --index; without it there are none",
    )
    parser.add_argument(
        "--engine",
        choices=["embedded", _STOCK],
        default="embedded",
        help=f"what serves: this package, or the {_STOCK} on the PATH (without search over HTTP)",
    )
    add_engine(parser, default="auto", option="--tower_engine")
    parser.add_argument(
        "--op_threads",
        type=PositiveInt,
        help="threads of one op of TensorFlow; a batch has all cores all the same, if no other of"
        " its model runs. With more than one a single long question is answered sooner, and fewer"
        " short ones are in a second (default: 1; all cores for exact search of many)",
    )
    parser.add_argument(
        "--grpc_channel_arguments",
        default="",
        help="gRPC's own arguments, NAME=VALUE,NAME=VALUE, such as"
        " grpc.max_connection_age_ms=10000, after which clients look for other servers too",
    )
    for field in dataclasses.fields(Limits):
        parser.add_argument(
            f"--{field.name}",
            type=type(field.default),
            default=field.default,
            help=field.metadata["help"],
        )
    return parser


def run(args: Any) -> int:
    """Serves until SIGTERM or SIGINT."""
    for name in ("port", "rest_api_port", "http_port"):
        if not 0 <= getattr(args, name) <= 65535:
            raise ValueError(f"`--{name}` must be in [0, 65535]. Received: {getattr(args, name)}")
    ports = [port for port in (args.port, args.rest_api_port, args.http_port) if port]
    if len(set(ports)) < len(ports):
        raise ValueError(
            "`--port`, `--rest_api_port` and `--http_port` must be three."
            f" Received: {args.port}, {args.rest_api_port}, {args.http_port}"
        )
    if args.index is None:
        require(
            args.admin_key_file is None, "--admin_key_file", "beside --index", args.admin_key_file
        )
    else:
        require(args.retriever is None, "--retriever", "absent beside --index", args.retriever)
    if args.engine == _STOCK:
        _check_stock(args)
    if not Path(args.bundle, "models.config").is_file():
        raise FileNotFoundError(
            f"{args.bundle}: no models.config there, so no bundle; `tfde export` makes one."
        )
    return _serve(args) if args.engine == "embedded" else _run_stock(args)


def _serve(args: Any) -> int:
    with quick_imports():
        from tfde.environment import load_scann_ops
        from tfde.export.bundle_directory import MANIFEST, read_manifest
        from tfde.export.bundle_engines import engine_of
        from tfde.serving.application.search_service import bundle_models
        from tfde.serving.server.http_thread import HttpThread
        from tfde.serving.server.model_server import ModelServer, asked_to_stop, end_process
        from tfde.serving.server.options import ServerOptions

        scann = load_scann_ops()

    show_logs()
    limit_logs()
    limits = with_descriptors(_limits(args))
    config = bundle_models(args.bundle, scann=scann)
    engine = args.tower_engine
    chosen = args.index is not None or engine not in ("auto", "tensorflow")
    # Models alone are served too, as by TensorFlow Serving.
    there = Path(args.bundle, MANIFEST).is_file()
    manifest = read_manifest(args.bundle) if chosen or there else {}
    if not there:
        _log.warning("%s: has no %s; whether it is whole is not known", args.bundle, MANIFEST)
    if engine not in ("auto", "tensorflow"):  # of auto each version's own files tell
        engine = engine_of(manifest, engine, use="query")
    models = config.model_config_list.config
    _keep(models, args.models)
    first = _first_models(args, models, manifest)
    _check_models(args.bundle, models)
    monitoring, batching = (
        Path(args.bundle, f"{name}.config") for name in ("monitoring", "batching")
    )
    server = ModelServer(
        config,
        ServerOptions(
            port=args.port,
            engine="" if engine == "tensorflow" else engine,
            max_num_load_retries=0,  # a bundle is whole: what does not load now never will
            tensorflow_intra_op_parallelism=op_threads(args, manifest),
            tensorflow_inter_op_parallelism=-1,  # a tower is a chain: threads between ops cost time
            monitoring_config_file=str(monitoring) if monitoring.is_file() else "",
            enable_batching=True,
            batching_parameters_file=str(batching) if batching.is_file() else "",
            lenient_batching=True,
            grpc_max_waiting=_MAX_WAITING,
            allow_reload=False,  # a bundle's models belong together
            enable_grpc_healthcheck_service=True,
            grpc_channel_arguments=args.grpc_channel_arguments,
        ),
        host=args.host,
        rest_api_port=args.rest_api_port,
        limits=limits,
        one_version=True,
        first=[model.name for model in models if model.name in first],
    )
    http = HttpThread("HTTP", args.host, args.http_port, limits=limits)
    with _search_app(args, server.service, manifest) as app, asked_to_stop() as asked:
        http.start(app)  # before the models, so that health can be asked while they load
        failure = _answer_until(asked, args, server, http, retrieves=args.retriever in first)
        http.refuse()
        server.refuse()
        http.join(limits.drain_timeout_s)  # before the models that its requests run
        if not server.stop():  # the index, all on the disk, is not closed
            end_process(0 if failure is None else failed("tfde serve", failure))
    if failure is not None:
        raise failure
    return 0


def _answer_until(
    asked: StopRequest, args: Any, server: Any, http: Any, *, retrieves: bool
) -> Exception | None:
    """Starts the server, until it is asked to stop; returns why it cannot go on, if so."""
    from tfde.serving.server.status import StatusError

    def still_wanted() -> bool:
        return not asked.is_set()

    try:
        if not server.start(still_wanted):
            return None
        server.wait_for_all(lambda: False)  # what has failed by now is raised
        if missing := server.manager.missing():
            where, names = _addresses(args, server, http), ", ".join(missing)
            _log.info("search is answered: %s; still loading: %s", where, names)
        if server.wait_for_all(still_wanted):
            _tell_ready(args, server, http, retrieves=retrieves)
            asked.wait()
    except StatusError as error:  # a bundle is whole, or it is not served
        hint = f" `tfde verify {shlex.quote(args.bundle)}` names damaged files."
        return StatusError(error.code, error.message + hint)
    return None


def op_threads(args: Any, manifest: Mapping[str, Any]) -> int:
    """Returns how many threads an op has, as asked for or by the bundle.

    All ops of a tower that reads a dozen tokens lose time by a second thread. A product with all
    vectors gains by it.
    """
    from tfde.environment import usable_cores

    exact = args.index is None and args.retriever == "retriever"
    numbers = (manifest.get("documents") or 0) * manifest.get("embedding_dim", 0)
    return args.op_threads or (usable_cores() if exact and numbers > _FEW_NUMBERS else 1)


def _limits(args: Any) -> Limits:
    names = [field.name for field in dataclasses.fields(Limits)]
    return Limits(**{name: getattr(args, name) for name in names})


def _check_models(bundle: str, models: Any) -> None:
    """Refuses a bundle of which a model is not there: it would be waited for."""
    from tfde.serving.server.status import StatusError
    from tfde.serving.server.versions import versions_there, wanted_versions

    for model in models:
        found: dict[int, str] = {}
        with suppress(StatusError):
            found = wanted_versions(model, versions_there(model))
        if not found:
            raise FileNotFoundError(
                f"{model.base_path}: holds no version to serve, and a bundle is served whole or not"
                f" at all; `tfde verify {bundle}` names what is missing."
            )


def _keep(models: Any, wanted: Sequence[str] | None) -> None:
    """Removes all models but those that are wanted; `None` keeps all."""
    names = [model.name for model in models]
    for name in wanted or ():
        if name not in names:
            raise ValueError(
                f"`--models` must be of the bundle's: {', '.join(names)}. Received: {name!r}"
            )
    for model in list(models):
        if wanted and model.name not in wanted:
            models.remove(model)


def _first_models(args: Any, models: Any, manifest: Mapping[str, Any]) -> list[str]:
    """Returns the models that search asks, which load first.

    Where it is not given, `args.retriever` is chosen. An index is searched in place of retrievers,
    which are not served beside it.
    """
    retrievers = [model for model in models if model.name.startswith("retriever")]
    names = [model.name for model in retrievers]
    if args.retriever is None:
        args.retriever = "retriever" if "retriever" in names else next(iter(names), "retriever")
    elif args.retriever not in names:
        raise ValueError(
            f"`--retriever` must be one of those served: {', '.join(names)}."
            f" Received: {args.retriever!r}"
        )
    if args.index is None:
        return [args.retriever if retrievers else "query_encoder", "documents"]
    for model in retrievers:
        models.remove(model)
    for model in models:
        model.model_version_policy.specific.versions.append(manifest["version"])
    towers = ["query_encoder", *(["document_encoder"] if args.admin_key_file else [])]
    if not {model.name for model in models}.issuperset(towers):
        raise ValueError(
            f"`--models` must hold {' and '.join(towers)}, which --index"
            f"{' and --admin_key_file need' if len(towers) > 1 else ' needs'}."
            f" Received: {' '.join(args.models or (model.name for model in models))}"
        )
    return ["query_encoder", "documents"]


@contextmanager
def _search_app(args: Any, service: Any, manifest: Mapping[str, Any]) -> Iterator[Any]:
    from tfde.serving.application.admin import create_admin, key_check, read_key
    from tfde.serving.application.http_api import bounded, create_app
    from tfde.serving.application.live_search import LiveSearchService
    from tfde.serving.application.search_service import SearchService
    from tfde.serving.server.model_server import end_process

    if args.index is None:
        yield bounded(create_app(SearchService(service, args.retriever)), service.limits)
        return
    from tfde.retrieval.live.live_index import LiveIndex

    key = None if args.admin_key_file is None else read_key(args.admin_key_file)
    with LiveIndex.open(args.index, write=key is not None) as index:
        live = LiveSearchService(
            service,
            index,
            fingerprint=manifest["towers_fingerprint"],
            version=manifest["version"],
            needs_context=manifest.get("needs_context", True),
        )
        app = create_app(live, admin=None if key is None else create_admin(live))
        yield bounded(app, live.limits, admit=None if key is None else key_check(key))
        if not live.close(live.limits.drain_timeout_s):
            _log.warning("%s: its compaction was not waited for; the next one does it", args.index)
            end_process(0)


def _tell_ready(args: Any, server: Any, http: Any, *, retrieves: bool) -> None:
    from tfde.serving.application.search_service import NO_RETRIEVER

    host = _host(args)
    model = "" if args.retriever == "retriever" else f" --model {args.retriever}"
    ask = f'tfde query --target {host}:{server.port}{model} "your question"'
    if args.index is not None:  # which gRPC knows nothing of
        ask = f'tfde query --target http://{host}:{http.port} "your question"'
    elif not retrieves:
        print(f"tfde serve: {NO_RETRIEVER}", file=sys.stderr)
        ask = f"""curl {host}:{http.port}/v1/embeddings -d '{{"input": "your question"}}'"""
    print(f"ready: {_addresses(args, server, http)}; ask it: {ask}", flush=True)


def _addresses(args: Any, server: Any, http: Any) -> str:
    listens = f"[{args.host}]" if ":" in args.host else args.host
    return (
        f"gRPC {listens}:{server.port}, REST http://{listens}:{server.rest_api_port},"
        f" search http://{_host(args)}:{http.port}"
    )


def _host(args: Any) -> str:
    """Returns what a client on this machine calls the address."""
    if args.host in ("0.0.0.0", "::"):
        return "localhost"
    return f"[{args.host}]" if ":" in args.host else str(args.host)


def _check_stock(args: Any) -> None:
    absent = build_parser()
    own = ("index", "retriever", "http_port", "tower_engine", "op_threads")
    for name in (*own, "grpc_channel_arguments"):
        default = absent.get_default(name)
        require(
            getattr(args, name) == default, f"--{name}", f"absent for {_STOCK}", getattr(args, name)
        )
    for name in ("port", "rest_api_port"):
        require(getattr(args, name) > 0, f"--{name}", f"above 0 for {_STOCK}", 0)
    require(args.host == "127.0.0.1", "--host", f"absent: {_STOCK} listens everywhere", args.host)


def _run_stock(args: Any) -> int:
    """Becomes a TensorFlow Serving that serves the bundle."""
    from google.protobuf import text_format

    from tfde.serving.application.search_service import bundle_models

    program = shutil.which(_STOCK)
    if program is None:
        raise FileNotFoundError(f"`--engine {_STOCK}`: no such program on the PATH.")
    config = bundle_models(args.bundle, scann=True)
    models = config.model_config_list.config
    _keep(models, args.models)
    runs = {
        model.name for model in bundle_models(args.bundle, scann=False).model_config_list.config
    }
    for model in [model for model in models if model.name not in runs]:
        models.remove(model)
        print(f"tfde serve: without {model.name}: {_STOCK} has no ops of ScaNN", file=sys.stderr)
    # It stays: the server that this process becomes reads it.
    path = Path(tempfile.mkdtemp(prefix="tfde-serve-")) / "models.config"
    path.write_text(text_format.MessageToString(config), "utf-8")
    flags = [
        f"--port={args.port}",
        f"--rest_api_port={args.rest_api_port}",
        f"--model_config_file={path}",
        f"--monitoring_config_file={Path(args.bundle).absolute() / 'monitoring.config'}",
    ]
    sys.stdout.flush()
    os.execv(program, [program, *flags])
