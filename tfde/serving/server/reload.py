"""The change of what is served, asked for over the network: by whom it may be done, and to what."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from grpc import StatusCode
from tensorflow_serving.apis import model_management_pb2

from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.status import StatusError, invalid_argument


@dataclass(frozen=True)
class ReloadRules:
    """What clients may do.

    Args:
        allowed: Whether they may change the configuration at all.
        base_paths: Where all base paths of theirs must lie; none named means anywhere.
        timeout_s: Seconds a reload waits for its new models at most.
    """

    allowed: bool = True
    base_paths: tuple[str, ...] = ()
    timeout_s: float = 600.0

    def check(self, request: model_management_pb2.ReloadConfigRequest) -> None:
        """Refuses what is not allowed.

        Raises:
            StatusError: PERMISSION_DENIED, reloads are off or a base path lies elsewhere;
                INVALID_ARGUMENT, the request holds no list of models.
        """
        if not self.allowed:
            raise _denied(
                "HandleReloadConfigRequest is off (--allow_reload of tfde-model-server; `tfde"
                " bundle install` changes what `tfde serve` serves)."
            )
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid_argument(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only"
                " ModelConfigList is currently supported"
            )
        for config in request.config.model_config_list.config:
            if self.base_paths and not any(_below(config.base_path, p) for p in self.base_paths):
                raise _denied(
                    f"The base path of model {config.name} must lie in --reload_base_paths."
                    f" Received: {config.base_path}"
                )


def reload_config(
    manager: ModelManager,
    request: model_management_pb2.ReloadConfigRequest,
    rules: ReloadRules | None = None,
    *,
    timeout_s: float | None = None,
    still_wanted: Callable[[], bool] = lambda: True,
) -> model_management_pb2.ReloadConfigResponse:
    """Answers a HandleReloadConfigRequest: the whole configuration is replaced.

    Args:
        manager: The models.
        request: The new configuration.
        rules: What is allowed; `None` for everything.
        timeout_s: Seconds that the client waits; `None` for ever.
        still_wanted: Whether the client is still there.

    Raises:
        StatusError: the configuration is not allowed or impossible, or a new model does not load.
    """
    rules = rules or ReloadRules()
    rules.check(request)
    seconds = rules.timeout_s if timeout_s is None else min(timeout_s, rules.timeout_s)
    try:
        manager.apply(request.config, timeout_s=seconds, still_wanted=still_wanted)
    except StatusError as error:
        if error.code is not StatusCode.DEADLINE_EXCEEDED or seconds != rules.timeout_s:
            raise
        waited = f"{seconds:g} s are over (--reload_timeout_in_ms)"
        raise StatusError(error.code, f"{error.message.rstrip('.')}; {waited}.") from None
    response = model_management_pb2.ReloadConfigResponse()
    response.status.SetInParent()
    return response


def _below(path: str, parent: str) -> bool:
    # `..` and its like count, in a URI too; symbolic links were made by who may make them.
    root = posixpath.normpath(parent).rstrip("/")
    inner = posixpath.normpath(path)
    return inner == root or inner.startswith(f"{root}/")


def _denied(message: str) -> StatusError:
    return StatusError(StatusCode.PERMISSION_DENIED, message)
