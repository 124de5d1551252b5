"""Which versions of a model lie on the disk and which of them its policy wants."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tfde.serving.server.status import CODES, StatusError, not_found
from tfde.serving.server.text_protos import read_text_proto

_INT64_MAX = 2**63 - 1
_NUMBER = re.compile("[+-]?[0-9]+")  # leading zeros and all

_log = logging.getLogger(__name__)


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


def versions_there(config: ModelConfig) -> dict[int, str]:
    """Returns the versions that lie under a model's base path, and their directories.

    Raises:
        StatusError: NOT_FOUND, there is no base path; else why it cannot be listed.
    """
    try:
        return _versions_in(config)
    except tf.errors.OpError as error:
        message = f"Could not list base path {config.base_path} for servable {config.name}"
        raise StatusError(CODES[error.error_code], f"{message}: {error.message}") from None


def wanted_versions(config: ModelConfig, there: Mapping[int, str]) -> dict[int, str]:
    """Returns those of the versions that are there which the model's policy asks for."""
    policy = config.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return dict(there)
    if kind == "specific":
        numbers = sorted(set(policy.specific.versions) & set(there))
    else:
        numbers = sorted(there)[-max(1, policy.latest.num_versions) :]
    return {number: there[number] for number in numbers}


def _versions_in(config: ModelConfig) -> dict[int, str]:
    # TensorFlow's file systems, so that gs:// and its like work too.
    if not tf.io.gfile.isdir(config.base_path):
        raise not_found(f"Could not find base path {config.base_path} for servable {config.name}")
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(config.base_path)}
    root = config.base_path.rstrip("/")
    there: dict[int, str] = {}
    # Of `01` and `1` the last in this order is served, as TensorFlow Serving does.
    for name in sorted(filter(_NUMBER.fullmatch, names)):
        path = f"{root}/{name}"
        if -_INT64_MAX - 1 <= int(name) <= _INT64_MAX and tf.io.gfile.isdir(path):
            if int(name) in there:
                _warn_once(
                    f"version {int(name)} lies in {there[int(name)]} and {path}, served: {path}"
                )
            there[int(name)] = path
    return there


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
