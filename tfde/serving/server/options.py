"""What a model server is started with: the flags of tensorflow_model_server, their defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

# Flags that another server needs and this one has no use for; they are taken and do nothing.
NO_EFFECT = {
    "flush_filesystem_caches": True,
    "num_unload_threads": 0,
    "remove_unused_fields_from_bundle_metagraph": True,
    "skip_initialize_tpu": False,
    "xla_cpu_compilation_enabled": False,
    "xla_gpu_compilation_enabled": False,
}
# Flags for which this server has nothing; another value than the default is an error.
UNSUPPORTED = {
    "enable_profiler": False,
    "mixed_precision": "",
    "num_tflite_interpreters_per_pool": 1,
    "num_tflite_pools": 0,
    "platform_config_file": "",
    "thread_pool_factory_config_file": "",
}


def _flag(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServerOptions:
    """Flags of tensorflow_model_server by their names; each field's help stands beside it."""

    port: int = _flag(8500, "gRPC port; 0 takes a free one")
    grpc_socket_path: str = _flag("", "Unix socket on which gRPC listens too")
    rest_api_port: int = _flag(0, "REST port; 0 turns REST off")
    rest_api_num_threads: int = _flag(
        0, "threads that answer REST; 0 for 4 a core, with batching 256"
    )
    rest_api_timeout_in_ms: int = _flag(
        30000, "milliseconds after which REST gives a request up; 0 for never"
    )
    rest_api_enable_cors_support: bool = _flag(False, "answers of REST carry CORS headers")
    enable_batching: bool = _flag(False, "join concurrent requests to a model in one run")
    batching_parameters_file: str = _flag("", "BatchingParameters, text format")
    lenient_batching: bool = _flag(
        False,
        "batch requests with inputs without rows where these are equal, and those that filter"
        " outputs; run requests larger than a batch by themselves (this server's own)",
    )
    enable_per_model_batching_parameters: bool = _flag(
        False, "batch the models with a batching_params.pbtxt beside them, by that file"
    )
    model_config_file: str = _flag("", "ModelServerConfig, text format: the models to serve")
    model_config_file_poll_wait_seconds: int = _flag(
        0, "seconds between looks at model_config_file; 0 reads it once"
    )
    model_name: str = _flag("default", "name of the one model, without model_config_file")
    model_base_path: str = _flag("", "its base path, which holds a directory for each version")
    num_load_threads: int = _flag(0, "versions that load at a time; 0 for one a core")
    max_num_load_retries: int = _flag(5, "how often a failed load is tried again")
    load_retry_interval_micros: int = _flag(60_000_000, "microseconds before it is")
    file_system_poll_wait_seconds: int = _flag(
        1, "seconds between looks for new versions; 0 looks once, below 0 never"
    )
    allow_version_labels_for_unavailable_models: bool = _flag(
        False, "a new label may name a version that is not available yet"
    )
    allow_reload: bool = _flag(
        True, "clients may change what is served by HandleReloadConfigRequest (this server's own)"
    )
    reload_base_paths: str = _flag(
        "", "where the models of such a request must lie, with commas; anywhere if empty"
    )
    reload_timeout_in_ms: int = _flag(
        600_000, "milliseconds such a request waits for its models at most; they go on loading"
    )
    tensorflow_session_parallelism: int = _flag(0, "threads of each TensorFlow pool; 0: automatic")
    tensorflow_intra_op_parallelism: int = _flag(0, "threads within an op; 0: automatic")
    tensorflow_inter_op_parallelism: int = _flag(
        0, "ops at a time; 0: automatic, -1: on the request's thread"
    )
    tensorflow_session_config_file: str = _flag("", "ConfigProto, text format")
    per_process_gpu_memory_fraction: float = _flag(0.0, "share of the GPU's memory; 0: automatic")
    saved_model_tags: str = _flag("serve", "tags of the meta graph to load, with commas")
    prefer_tflite_model: bool = _flag(
        False, "serve a version's model.tflite, where there is one, not its SavedModel"
    )
    engine: str = _flag(
        "",
        "openvino or onnxruntime: runs the tower, whose file for it lies beside a SavedModel, as"
        " `tfde export --format` writes it; auto: what was fastest then, of what is installed;"
        " TensorFlow if empty (this server's own)",
    )
    ssl_config_file: str = _flag("", "SSLConfig, text format: TLS for gRPC")
    use_alts_credentials: bool = _flag(False, "Google's ALTS for gRPC")
    grpc_channel_arguments: str = _flag("", "gRPC's own arguments: NAME=VALUE,NAME=VALUE")
    grpc_max_threads: int = _flag(0, "threads that answer gRPC; 0 for 4 a core, with batching 256")
    grpc_max_waiting: int = _flag(
        1024,
        "requests that may wait for such a thread, others are refused with RESOURCE_EXHAUSTED;"
        " 0 for no bound (this server's own)",
    )
    enable_grpc_healthcheck_service: bool = _flag(False, "grpc.health.v1 on the gRPC port")
    enable_model_warmup: bool = _flag(True, "run a version's warm-up requests before it is there")
    num_request_iterations_for_warmup: int = _flag(1, "how often each warm-up request runs")
    monitoring_config_file: str = _flag("", "MonitoringConfig, text format: metrics on REST")
    enable_serialization_as_tensor_content: bool = _flag(
        False, "Predict answers numbers as bytes (tensor_content), not in typed fields"
    )
    enable_signature_method_name_check: bool = _flag(
        False, "refuse signatures of another method than the request's"
    )
