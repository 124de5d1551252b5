"""From the server's flags and the files they name to what the parts are made with."""

from __future__ import annotations

import re
from typing import Any

import grpc
import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from tfde.config.engines import ENGINES
from tfde.engines.tower_engine import is_installed
from tfde.environment import usable_cores
from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.protos.monitoring_config_pb2 import MonitoringConfig
from tfde.protos.ssl_config_pb2 import SSLConfig
from tfde.serving.server.batching import check_batching_parameters
from tfde.serving.server.config_changes import is_absolute
from tfde.serving.server.limits import Limits
from tfde.serving.server.loader import Loader
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.reload import ReloadRules
from tfde.serving.server.status import invalid_argument, naming
from tfde.serving.server.versions import read_text_proto

_BATCHING_THREADS = 256
_INT32_MAX = 2**31 - 1
_METRICS_PATH = "/monitoring/prometheus/metrics"
_GRPC_OPTIONS: dict[str, int | str] = {
    "grpc.max_send_message_length": -1,
    # A second server on the same port must fail instead of taking half of the requests.
    "grpc.so_reuseport": 0,
    # Requests beyond these wait at the client.
    "grpc.max_concurrent_streams": 1024,
    # A client that idles connects again, unseen by its program; a dead one is found out.
    "grpc.max_connection_idle_ms": 300_000,
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
}


def check_options(options: ServerOptions) -> None:
    """Refuses flags that nothing can be started with.

    Raises:
        StatusError: INVALID_ARGUMENT, which flag, and what it must be.
    """
    for name in ("port", "rest_api_port"):
        if not 0 <= getattr(options, name) <= 65535:
            raise invalid_argument(
                f"--{name} must be in [0, 65535]. Received: {getattr(options, name)}"
            )
    if options.rest_api_port and options.rest_api_port == options.port:
        raise invalid_argument(
            "--rest_api_port cannot be same as --port. Please use a different port for HTTP/REST"
            " API."
        )
    for name in ("num_load_threads", "rest_api_num_threads", "grpc_max_threads"):
        if getattr(options, name) < 0:
            raise invalid_argument(
                f"--{name} must be 0 or more. Received: {getattr(options, name)}"
            )
    if options.engine not in ("", "auto", *ENGINES):
        raise invalid_argument(
            f"--engine must be one of auto, {', '.join(ENGINES)}. Received: {options.engine}"
        )
    if options.engine in ENGINES and not is_installed(options.engine):
        raise invalid_argument(
            f"--engine {options.engine} needs its package: `tfde doctor` says which is missing"
        )


def make_loader(options: ServerOptions, metrics: Metrics) -> Loader:
    """Returns what loads versions by these flags.

    Raises:
        StatusError: a file is missing or wrong, or flags contradict each other.
    """
    iterations = max(1, options.num_request_iterations_for_warmup)
    return Loader(
        tags=tuple(options.saved_model_tags.split(",")),
        prefer_tflite=options.prefer_tflite_model,
        engine=options.engine,
        session_config=_session_config(options),
        batching=_batching(options),
        lenient_batching=options.lenient_batching,
        per_model_batching=options.enable_per_model_batching_parameters,
        warmup_iterations=iterations if options.enable_model_warmup else 0,
        metrics=metrics,
    )


def reload_rules(options: ServerOptions) -> ReloadRules:
    """Returns what clients may do to the configuration.

    Raises:
        StatusError: INVALID_ARGUMENT, a path of the flags is not absolute.
    """
    paths = tuple(filter(None, options.reload_base_paths.split(",")))
    for path in paths:
        if not is_absolute(path):
            raise invalid_argument(
                f"--reload_base_paths must hold absolute paths or URIs. Received: {path}"
            )
    return ReloadRules(options.allow_reload, paths, options.reload_timeout_in_ms / 1000)


def metrics_path(options: ServerOptions) -> str:
    """Returns where Prometheus finds the metrics, "" for nowhere.

    Raises:
        StatusError: the file of the flags is missing or wrong.
    """
    if not options.monitoring_config_file:
        return ""
    with naming("--monitoring_config_file"):
        file = read_text_proto(options.monitoring_config_file, MonitoringConfig())
    config = file.prometheus_config
    return (config.path or _METRICS_PATH) if config.enable else ""


def server_credentials(options: ServerOptions) -> Any:
    """Returns gRPC's credentials, `None` for a port without encryption.

    Raises:
        StatusError: the file of the flags is missing or wrong, or lacks key or certificate.
    """
    if options.use_alts_credentials:
        return grpc.alts_server_credentials()
    if not options.ssl_config_file:
        return None
    with naming("--ssl_config_file"):
        config = read_text_proto(options.ssl_config_file, SSLConfig())
        for name in ("server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])):
            if not getattr(config, name):
                raise invalid_argument(f"{options.ssl_config_file}: `{name}` is missing")
            if "-----BEGIN " not in getattr(config, name):
                raise invalid_argument(
                    f"{options.ssl_config_file}: `{name}` must hold PEM, not the name of a file"
                )
    return grpc.ssl_server_credentials(
        [(config.server_key.encode(), config.server_cert.encode())],
        root_certificates=config.custom_ca.encode() or None,
        require_client_auth=config.client_verify,
    )


def channel_arguments(options: ServerOptions, limits: Limits) -> list[tuple[str, int | str]]:
    """Returns gRPC's arguments: those of the limits and, over them, those of the flag.

    Raises:
        StatusError: INVALID_ARGUMENT, one is not NAME=VALUE, or its number is too large.
    """
    arguments = {
        **_GRPC_OPTIONS,
        "grpc.max_receive_message_length": limits.max_request_bytes,  # of one packed, unpacked
        "grpc.max_allowed_incoming_connections": limits.max_connections,
        "grpc.server_handshake_timeout_ms": int(limits.head_timeout_s * 1000),
    }
    for pair in filter(None, options.grpc_channel_arguments.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise invalid_argument("grpc_channel_arguments must be NAME=VALUE,...; got ", pair)
        arguments[name] = int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value
        if isinstance(number := arguments[name], int) and abs(number) > _INT32_MAX:
            raise invalid_argument("grpc_channel_arguments must be of 32 bits; got ", pair)
    return list(arguments.items())


def request_threads(options: ServerOptions, wanted: int) -> int:
    """Returns how many threads answer requests: `wanted`, or a number that suits for 0."""
    # Threads wait inside TensorFlow, whose own pools do the work: more of them than cores lets
    # requests overlap, TensorFlow Serving's count too. One that waits for its batch holds one.
    return wanted or (_BATCHING_THREADS if options.enable_batching else 4 * usable_cores())


def _batching(options: ServerOptions) -> BatchingParameters | None:
    if not options.enable_batching:
        if options.batching_parameters_file:
            raise invalid_argument(
                "server_options.batching_parameters_file is set without setting"
                " server_options.enable_batching to true."
            )
        return None
    parameters = BatchingParameters()
    if options.batching_parameters_file:
        with naming("--batching_parameters_file"):
            read_text_proto(options.batching_parameters_file, parameters)
        with naming(f"--batching_parameters_file {options.batching_parameters_file}"):
            check_batching_parameters(parameters)
    return parameters


def _session_config(options: ServerOptions) -> Any:
    config = tf.compat.v1.ConfigProto()
    # Going over a graph twice takes a third of a model's loading and finds next to nothing.
    config.graph_options.rewrite_options.meta_optimizer_iterations = RewriterConfig.ONE
    if tf.config.get_visible_devices("GPU"):
        # oneDNN's remapping writes a layer norm into graphs that has no kernel for a GPU.
        config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    if options.tensorflow_session_config_file:
        with naming("--tensorflow_session_config_file"):
            read_text_proto(options.tensorflow_session_config_file, config)
    both = options.tensorflow_session_parallelism
    intra = options.tensorflow_intra_op_parallelism or both
    inter = options.tensorflow_inter_op_parallelism or both
    if intra:
        config.intra_op_parallelism_threads = intra
    if inter:
        config.inter_op_parallelism_threads = inter
    if options.per_process_gpu_memory_fraction:
        fraction = options.per_process_gpu_memory_fraction
        config.gpu_options.per_process_gpu_memory_fraction = fraction
    return config
