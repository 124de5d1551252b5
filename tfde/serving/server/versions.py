"""Which versions of a model lie on the disk and which of them its policy wants."""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow as tf
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tfde.serving.server.status import CODES, StatusError, invalid_argument, not_found
from tfde.serving.server.text_protos import read_text_proto

_INT64_MAX = 2**63 - 1
# A base path may be a URI of a file system that TensorFlow reads.
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://")


def model_config(name: str, base_path: str | Path) -> ModelConfig:
    """Returns the description of one model with the default version policy (the latest)."""
    return ModelConfig(name=name, base_path=str(base_path), model_platform="tensorflow")


def server_config(*models: ModelConfig) -> ModelServerConfig:
    """Returns the configuration that serves these models."""
    config = ModelServerConfig()
    config.model_config_list.config.extend(models)
    return config


def read_server_config(path: str | Path) -> ModelServerConfig:
    """Reads a `models.config`: a ModelServerConfig in protobuf's text format.

    Raises:
        StatusError: NOT_FOUND, there is no such file; INVALID_ARGUMENT, it does not parse.
    """
    return read_text_proto(str(path), ModelServerConfig())


def check_models(configs: list[ModelConfig]) -> None:
    """Refuses a list of models that no server can serve, with TensorFlow Serving's words.

    Raises:
        StatusError: INVALID_ARGUMENT, what is wrong with which model.
    """
    names: set[str] = set()
    for config in configs:
        if not config.name:
            raise invalid_argument("Expected every model to have a name; got an empty one")
        if config.name in names:
            raise invalid_argument(
                f"Illegal to list model {config.name} multiple times in config list"
            )
        names.add(config.name)
        if not _ABSOLUTE.match(config.base_path):
            raise invalid_argument(
                f"Expected model {config.name} to have an absolute path or URI; got base_path()=",
                config.base_path,
            )
        if platform_of(config) != "tensorflow":
            raise invalid_argument(
                f"Model {config.name} requests unsupported platform {platform_of(config)}"
            )


def platform_of(config: ModelConfig) -> str:
    """Returns the kind of model, by the field in use or the one before it.

    Raises:
        StatusError: INVALID_ARGUMENT, both fields are set, or neither.
    """
    if config.model_type:  # deprecated, 1 is TensorFlow
        if config.model_platform:
            raise invalid_argument(
                "Illegal setting both model_type(deprecated) and model_platform."
            )
        return "tensorflow" if config.model_type == 1 else "other"
    if not config.model_platform:
        raise invalid_argument("Illegal setting neither model_type(deprecated) nor model_platform.")
    return config.model_platform


def wanted_versions(config: ModelConfig) -> list[int]:
    """Returns the versions to serve, ascending: those of the policy that lie in the base path.

    Raises:
        StatusError: NOT_FOUND, there is no base path; else why it cannot be listed.
    """
    try:
        there = _versions_in(config)
    except tf.errors.OpError as error:
        message = f"Could not list base path {config.base_path} for servable {config.name}"
        raise StatusError(CODES[error.error_code], f"{message}: {error.message}") from None
    policy = config.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "specific":
        return sorted(set(policy.specific.versions) & set(there))
    if kind == "all":
        return there
    return there[-max(1, policy.latest.num_versions) :]


def _versions_in(config: ModelConfig) -> list[int]:
    # TensorFlow's file systems, so that gs:// and its like work too.
    if not tf.io.gfile.isdir(config.base_path):
        raise not_found(f"Could not find base path {config.base_path} for servable {config.name}")
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(config.base_path)]
    numbers = [int(name) for name in names if re.fullmatch(r"[0-9]{1,19}", name)]
    root = config.base_path.rstrip("/")
    return sorted(
        number
        for number in set(numbers)
        if number <= _INT64_MAX and tf.io.gfile.isdir(f"{root}/{number}")
    )
