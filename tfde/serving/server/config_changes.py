"""Which configurations may follow which: the checks before anything is changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

from grpc import StatusCode
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig,
    ModelServerConfig,
    ModelType,
)

from tfde.serving.server.status import StatusError, invalid_argument

# A base path may be a URI of a file system that TensorFlow reads.
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://")

_log = logging.getLogger(__name__)


def is_absolute(path: str) -> bool:
    """Whether a base path is absolute, or a URI of a file system."""
    return _ABSOLUTE.match(path) is not None


def models_of(config: ModelServerConfig) -> list[ModelConfig] | None:
    """Returns the models that a configuration lists; `None` for an empty one, a change of nothing.

    Raises:
        StatusError: FAILED_PRECONDITION, it is of another kind; INVALID_ARGUMENT, what is wrong
            with which model, with TensorFlow Serving's words.
    """
    kind = config.WhichOneof("config")
    if kind is None:
        _log.info("Taking no action for empty config.")
        return None
    if kind != "model_config_list":
        raise StatusError(
            StatusCode.FAILED_PRECONDITION,
            "Cannot transition to requested config. It is only legal to transition from one"
            " ModelConfigList to another.",
        )
    configs = list(config.model_config_list.config)
    names: set[str] = set()
    for model in configs:
        if not model.name:
            raise invalid_argument("Expected every model to have a name; got an empty one")
        if model.name in names:
            raise invalid_argument(
                f"Illegal to list model {model.name} multiple times in config list"
            )
        names.add(model.name)
        if not is_absolute(model.base_path):
            raise invalid_argument(
                f"Expected model {model.name} to have an absolute path or URI; got base_path()=",
                model.base_path,
            )
        if platform_of(model) != "tensorflow":
            raise invalid_argument(
                f"Model {model.name} requests unsupported platform {platform_of(model)}"
            )
    return configs


def platform_of(config: ModelConfig) -> str:
    """Returns the kind of model, by the field in use or the one before it.

    Raises:
        StatusError: INVALID_ARGUMENT, both fields are set, or neither.
    """
    if config.model_type:
        if config.model_platform:
            raise invalid_argument(
                "Illegal setting both ModelServerConfig::model_type (deprecated) and"
                f" ModelServerConfig::model_platform, model name is {config.name}"
            )
        if config.model_type != ModelType.TENSORFLOW:
            raise invalid_argument(
                f"ModelServerConfig::model_type choice {config.model_type} not supported."
            )
        return "tensorflow"
    if not config.model_platform:
        raise invalid_argument(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor"
            f" ModelServerConfig::model_platform, model name is {config.name}"
        )
    return config.model_platform


def check_platforms(old: Mapping[str, ModelConfig], new: Sequence[ModelConfig]) -> None:
    """Refuses a model that changes its kind.

    Raises:
        StatusError: INVALID_ARGUMENT, which one.
    """
    for config in new:
        before = old.get(config.name)
        if before is not None and platform_of(before) != platform_of(config):
            raise invalid_argument(
                f"Illegal to change a model's platform. For model {config.name} platform was"
                f" {platform_of(before)} and new platform requested is {platform_of(config)}"
            )


def checked_labels(
    configs: Sequence[ModelConfig],
    known: Mapping[str, Mapping[str, int]],
    is_available: Callable[[str, int], bool],
    *,
    allow_unavailable: bool,
) -> dict[str, dict[str, int]]:
    """Returns the version of each label of each model.

    Args:
        configs: The models.
        known: The labels until now.
        is_available: Whether a version of a model answers.
        allow_unavailable: Whether a label that is new, or stays where it is, may name a version
            that does not.

    Raises:
        StatusError: FAILED_PRECONDITION, a label names such a version.
    """
    for config in configs:
        for label, number in config.version_labels.items():
            moves = known.get(config.name, {}).get(label, number) != number
            if allow_unavailable and not moves:
                continue
            if not is_available(config.name, number):
                allowed = "--allow_version_labels_for_unavailable_models allows that of a new label"
                raise StatusError(
                    StatusCode.FAILED_PRECONDITION,
                    f"Request to assign label to version {number} of model {config.name},"
                    " which is not currently available for inference"
                    + ("" if moves else f"; {allowed}"),
                )
    return {config.name: dict(config.version_labels) for config in configs}
