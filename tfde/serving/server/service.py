"""Requests to a model: found, counted, timed and answered, whatever the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, model_pb2

from tfde.serving.server.inference import (
    Servable,
    common_model_spec,
    fill_spec,
    run_classify,
    run_multi_inference,
    run_predict,
    run_regress,
)
from tfde.serving.server.limits import Limits
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.status import invalid_argument

_Held = TypeVar("_Held")


class InferenceService:
    """Runs requests on the models of a manager.

    Args:
        manager: The models.
        metrics: Where requests are counted and timed.
        limits: How large requests may be.
        check_method: Whether signatures of another method are refused.
        as_content: Whether Predict answers numbers as bytes.
    """

    def __init__(
        self,
        manager: ModelManager,
        metrics: Metrics,
        *,
        limits: Limits | None = None,
        check_method: bool = False,
        as_content: bool = False,
    ) -> None:
        self.manager = manager
        self.metrics = metrics
        self.limits = limits or Limits()
        self.check_method = check_method
        self._as_content = as_content

    def predict(self, request: Any, *, timeout_s: float | None = None) -> Any:
        """Answers a PredictRequest.

        Raises:
            StatusError: the request cannot be answered; so do the other methods.
        """
        options = {
            "timeout_s": timeout_s,
            "as_content": self._as_content,
            "check_method": self.check_method,
        }
        return self._answer("Predict", run_predict, request, "GRPC", **options)

    def classify(
        self, request: Any, *, timeout_s: float | None = None, entrypoint: str = "GRPC"
    ) -> Any:
        """Answers a ClassificationRequest."""
        options = {"timeout_s": timeout_s, "check_method": self.check_method}
        return self._answer("Classify", run_classify, request, entrypoint, **options)

    def regress(
        self, request: Any, *, timeout_s: float | None = None, entrypoint: str = "GRPC"
    ) -> Any:
        """Answers a RegressionRequest."""
        options = {"timeout_s": timeout_s, "check_method": self.check_method}
        return self._answer("Regress", run_regress, request, entrypoint, **options)

    def multi_inference(self, request: Any, *, timeout_s: float | None = None) -> Any:
        """Answers a MultiInferenceRequest."""
        spec = common_model_spec(request)
        with self.using(spec, "MultiInference", "GRPC") as servable:
            return run_multi_inference(
                servable,
                request,
                limits=self.limits,
                timeout_s=timeout_s,
                check_method=self.check_method,
            )

    @contextmanager
    def using(self, spec: model_pb2.ModelSpec, api: str, entrypoint: str) -> Iterator[Servable]:
        """Holds the model of a request, and counts and times what its block does with it."""
        with self._counted(spec.name, api, entrypoint, self.manager.use(spec)) as servable:
            yield servable

    @contextmanager
    def using_all(
        self, names: Sequence[str], api: str, entrypoint: str
    ) -> Iterator[dict[str, Servable]]:
        """Holds one version of several models, and counts and times what is done with the first."""
        with self._counted(names[0], api, entrypoint, self.manager.use_all(names)) as servables:
            yield servables

    @contextmanager
    def _counted(
        self, name: str, api: str, entrypoint: str, held: AbstractContextManager[_Held]
    ) -> Iterator[_Held]:
        # Whatever a client calls a model must not become a label that stays for ever.
        name = name if self.manager.knows(name) else ""
        with (
            self.metrics.request(name, api, entrypoint),
            held as servables,
            self.metrics.runtime(name, api[0].upper() + api[1:]),
        ):
            yield servables

    def _answer(
        self, api: str, run: Callable[..., Any], request: Any, entrypoint: str, **options: Any
    ) -> Any:
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        # Dashboards know these labels in lower case where a request came over REST.
        api = api.lower() if entrypoint == "REST" else api
        with self.using(request.model_spec, api, entrypoint) as servable:
            return run(servable, request, limits=self.limits, **options)


def get_model_metadata(
    manager: ModelManager, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Answers a GetModelMetadata request: the signatures of a model.

    Raises:
        StatusError: the request cannot be answered.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise invalid_argument("Metadata field ", field, " is not supported")
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = get_model_metadata_pb2.SignatureDefMap()
    with manager.use(request.model_spec) as servable:
        for name, signature in servable.runner.signature_defs.items():
            signatures.signature_def[name].CopyFrom(signature)
        fill_spec(response.model_spec, servable)
    response.metadata["signature_def"].Pack(signatures)
    return response


def get_model_status(
    manager: ModelManager, request: get_model_status_pb2.GetModelStatusRequest
) -> get_model_status_pb2.GetModelStatusResponse:
    """Answers a GetModelStatus request: the state of a model's versions.

    Raises:
        StatusError: the request cannot be answered.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    response = get_model_status_pb2.GetModelStatusResponse()
    for version, state, error in manager.states(request.model_spec):
        status = response.model_version_status.add(version=version, state=state)
        status.status.SetInParent()
        if error is not None:
            status.status.error_code = error.code.value[0]
            status.status.error_message = error.message
    return response
