"""What lies on the disk: configuration files, and versions of models, of which some are wanted."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import Message
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tfde.serving.server.status import CODES, StatusError, invalid_argument, not_found

_INT64_MAX = 2**63 - 1
_NUMBER = re.compile("[+-]?[0-9]+")  # leading zeros and all
_log = logging.getLogger(__name__)
AnyMessage = TypeVar("AnyMessage", bound=Message)


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


def read_text_proto(path: str, message: AnyMessage) -> AnyMessage:
    """Fills a message from a file in protobuf's text format, and returns it.

    Raises:
        StatusError: NOT_FOUND, there is no such file; INVALID_ARGUMENT, it does not parse.
    """
    try:
        with tf.io.gfile.GFile(str(path)) as file:
            return text_format.Parse(file.read(), message)
    except tf.errors.OpError as error:
        raise StatusError(CODES[error.error_code], error.message) from None
    except text_format.ParseError as error:
        # The position stands at the beginning of the text, where there is one.
        reason = str(error).replace(" : ", ": ", 1)
    except UnicodeDecodeError as error:
        reason = str(error)
    # Source: words of protobuf's C++ parser, which TensorFlow Serving logs.
    kind = message.DESCRIPTOR.full_name
    raise invalid_argument(
        f"Invalid protobuf file: '{path}': Error parsing text-format {kind}: {reason}"
    )


class WantedVersions:
    """Which versions of each model are to be served, by what lies there; tells what is not there.

    Args:
        one_version: Whether the models belong together: only versions that all of them have.
    """

    def __init__(self, *, one_version: bool) -> None:
        self._one_version = one_version
        self._missing: dict[str, str] = {}  # what was told last of each model

    def find(self, configs: Mapping[str, ModelConfig]) -> dict[str, dict[int, str]]:
        """Looks at the disk; returns directories by model and version.

        A model that is not in what is returned stays as it is: its base path was not there.
        """
        there: dict[str, dict[int, str]] = {}
        for name, config in configs.items():
            try:
                there[name] = versions_there(config)
            except StatusError as error:
                self._tell_missing(name, error.message)
        if self._one_version and there:
            there = self._of_all(configs, there)
        wanted = {name: wanted_versions(configs[name], paths) for name, paths in there.items()}
        for name, paths in wanted.items():
            reason = f"No versions of servable {name} found under base path"
            self._tell_missing(name, "" if paths else f"{reason} {configs[name].base_path}")
        # Of models that belong together none goes where another has nothing in its place.
        return {} if self._one_version and not all(wanted.values()) else wanted

    def _of_all(
        self, configs: Mapping[str, ModelConfig], there: Mapping[str, Mapping[int, str]]
    ) -> dict[str, dict[int, str]]:
        """Returns the versions that all models have; no model at all where there is none."""
        common = set.intersection(*map(set, there.values()))
        latest = max((number for numbers in there.values() for number in numbers), default=None)
        lacking = [name for name in configs if latest not in there.get(name, {})]
        reason = f"Version {latest} is not there of {', '.join(sorted(lacking))}"
        self._tell_missing("", reason if lacking and latest is not None else "")
        if not common or len(there) < len(configs):
            return {}
        return {name: {number: there[name][number] for number in common} for name in there}

    def _tell_missing(self, name: str, reason: str) -> None:
        if reason and self._missing.get(name) != reason:
            _log.warning("%s; waiting for it", reason)
        self._missing[name] = reason
