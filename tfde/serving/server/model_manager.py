"""Which models are served, in which versions, and what state each is in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import get_model_status_pb2, model_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tfde.errors import ConfigError, shorten
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import invalid_argument, not_found

State = get_model_status_pb2.ModelVersionStatus

_log = logging.getLogger(__name__)


class Servable(NamedTuple):
    """One version of a model, ready to run."""

    name: str
    version: int
    runner: SignatureRunner


def model_config(name: str, base_path: str | Path) -> ModelConfig:
    """Returns the description of one model with the default version policy (the latest)."""
    return ModelConfig(name=name, base_path=str(base_path), model_platform="tensorflow")


def read_models_config(path: str | Path) -> list[ModelConfig]:
    """Reads a `models.config`: a ModelServerConfig in protobuf's text format.

    Raises:
        ConfigError: the file does not parse, names no model, repeats a name or asks for what
            this server does not have.
    """
    server_config = ModelServerConfig()
    try:
        text_format.Parse(Path(path).read_text(encoding="utf-8"), server_config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: must be a ModelServerConfig. Received: {error}") from None
    configs = list(server_config.model_config_list.config)
    if not configs:
        raise ConfigError(f"{path}: `model_config_list` must name a model. Received: none")
    names = [config.name for config in configs]
    for config in configs:
        if not config.name or names.count(config.name) > 1:
            raise ConfigError(f"{path}: `name` must be given and unique. Received: {config.name!r}")
        if config.model_platform not in ("", "tensorflow"):
            raise ConfigError(
                f"{path}: `model_platform` of {config.name!r} must be 'tensorflow'."
                f" Received: {config.model_platform!r}"
            )
        if config.version_labels:
            raise ConfigError(
                f"{path}: this server has no version labels."
                f" Received: {shorten(dict(config.version_labels))} for {config.name!r}"
            )
    return configs


class ModelManager:
    """Loads the versions that the configuration asks for and finds them for a request.

    Args:
        configs: One description a model.
    """

    def __init__(self, configs: Iterable[ModelConfig]) -> None:
        self._configs = list(configs)
        self._servables: dict[str, dict[int, Servable]] = {}
        self._states: dict[str, dict[int, int]] = {}

    def load(self) -> None:
        """Loads every model.

        Raises:
            ConfigError: a base path does not exist or holds no version, or a SavedModel cannot
                be loaded.
        """
        wanted = [(config, version) for config in self._configs for version in _versions(config)]
        for config, version in wanted:
            self._states.setdefault(config.name, {})[version] = State.START
        for config, version in wanted:
            self._load(config, version)

    def get(self, spec: model_pb2.ModelSpec) -> Servable:
        """Returns the version that a request asks for; without a version, the latest.

        Raises:
            StatusError: INVALID_ARGUMENT for no name or a version label, NOT_FOUND for an
                unknown model or version.
        """
        if not spec.name:
            raise invalid_argument("ModelSpec has no name specified.")
        if spec.version_label:
            raise invalid_argument("Unrecognized servable version label: ", spec.version_label)
        versions = self._servables.get(spec.name, {})
        if not spec.HasField("version"):
            if not versions:
                raise not_found("Servable not found for request: Latest(", spec.name, ")")
            return versions[max(versions)]
        version = spec.version.value
        if version not in versions:
            raise not_found(
                "Servable not found for request: Specific(", spec.name, ", ", version, ")"
            )
        return versions[version]

    def states(self, spec: model_pb2.ModelSpec) -> dict[int, int]:
        """Returns the state of the version asked for, or of all (a version label is ignored).

        Raises:
            StatusError: NOT_FOUND for an unknown model or version.
        """
        states = self._states.get(spec.name, {})
        if spec.HasField("version"):
            version = spec.version.value
            if version not in states:
                raise not_found("Could not find version ", version, " of model ", spec.name)
            return {version: states[version]}
        if not states:
            raise not_found("Could not find any versions of model ", spec.name)
        return dict(sorted(states.items(), reverse=True))

    def close(self) -> None:
        """Unloads everything."""
        for versions in self._servables.values():
            for servable in versions.values():
                servable.runner.close()
        self._servables.clear()

    def _load(self, config: ModelConfig, version: int) -> None:
        path = Path(config.base_path) / str(version)
        self._states[config.name][version] = State.LOADING
        started = time.monotonic()
        try:
            runner = SignatureRunner(path)
        except (tf.errors.OpError, OSError, RuntimeError, ValueError) as error:
            self._states[config.name][version] = State.END
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"model {config.name!r} version {version} cannot be loaded from {path}: {reason}"
            ) from error
        servable = Servable(config.name, version, runner)
        self._servables.setdefault(config.name, {})[version] = servable
        self._states[config.name][version] = State.AVAILABLE
        _log.info(
            "loaded %s version %d in %.1f s", config.name, version, time.monotonic() - started
        )


def _versions(config: ModelConfig) -> list[int]:
    """Returns the versions to serve, by the model's policy (default: the latest one)."""
    base_path = Path(config.base_path)
    if not base_path.is_dir():
        raise ConfigError(
            f"`base_path` of model {config.name!r} must be a directory."
            f" Received: {config.base_path!r}"
        )
    there = sorted(
        int(path.name) for path in base_path.iterdir() if path.name.isdecimal() and path.is_dir()
    )
    policy = config.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "specific":
        missing = sorted(set(policy.specific.versions) - set(there))
        if missing:
            raise ConfigError(
                f"model {config.name!r} has no version {missing[0]} in {config.base_path}."
                f" Received: versions {there}"
            )
        chosen = sorted(policy.specific.versions)
    elif kind == "all":
        chosen = there
    else:
        chosen = there[-max(1, policy.latest.num_versions) :]
    if not chosen:
        raise ConfigError(
            f"`base_path` of model {config.name!r} must hold a directory named by a version"
            f" number. Received: {config.base_path!r}"
        )
    return chosen
