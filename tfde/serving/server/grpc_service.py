"""The gRPC surface: Predict, GetModelMetadata and GetModelStatus."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.signature_runner import DEFAULT_SIGNATURE
from tfde.serving.server.status import StatusError, invalid_argument
from tfde.serving.server.tensors import to_array, to_proto

# "No deadline" reaches a servicer as some 9e18 seconds, which no timer takes.
_NO_DEADLINE_S = 1e9

_log = logging.getLogger(__name__)


def predict(
    manager: ModelManager, request: predict_pb2.PredictRequest, *, timeout_s: float | None = None
) -> predict_pb2.PredictResponse:
    """Answers a Predict request.

    Raises:
        StatusError: the request cannot be answered.
    """
    _require_spec(request)
    servable = manager.get(request.model_spec)
    signature_name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    servable.runner.inputs(signature_name)  # an unknown signature goes before wrong tensors
    outputs = servable.runner.run(
        signature_name,
        {alias: to_array(alias, proto) for alias, proto in request.inputs.items()},
        output_filter=request.output_filter,
        timeout_s=timeout_s,
    )
    response = predict_pb2.PredictResponse()
    _fill_spec(response.model_spec, servable.name, servable.version)
    response.model_spec.signature_name = signature_name
    for alias, array in outputs.items():
        dtype = servable.runner.output_dtype(signature_name, alias)
        response.outputs[alias].CopyFrom(to_proto(array, dtype))
    return response


def get_model_metadata(
    manager: ModelManager, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Answers a GetModelMetadata request: the signatures of a model.

    Raises:
        StatusError: the request cannot be answered.
    """
    _require_spec(request)
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise invalid_argument("Metadata field ", field, " is not supported")
    servable = manager.get(request.model_spec)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in servable.runner.signature_defs.items():
        signatures.signature_def[name].CopyFrom(signature)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    _fill_spec(response.model_spec, servable.name, servable.version)
    response.metadata["signature_def"].Pack(signatures)
    return response


def get_model_status(
    manager: ModelManager, request: get_model_status_pb2.GetModelStatusRequest
) -> get_model_status_pb2.GetModelStatusResponse:
    """Answers a GetModelStatus request: the state of a model's versions.

    Raises:
        StatusError: the request cannot be answered.
    """
    _require_spec(request)
    response = get_model_status_pb2.GetModelStatusResponse()
    for version, state in manager.states(request.model_spec).items():
        status = response.model_version_status.add(version=version, state=state)
        status.status.SetInParent()
    return response


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata; what it does not define answers UNIMPLEMENTED.

    Args:
        manager: The models.
    """

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Runs a signature, until the client's deadline at most."""
        left = context.time_remaining()
        timeout_s = None if left is None or left > _NO_DEADLINE_S else left
        run = functools.partial(predict, timeout_s=timeout_s)
        return _answer(run, self._manager, request, context)

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Describes the signatures of a model."""
        return _answer(get_model_metadata, self._manager, request, context)


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus; what it does not define answers UNIMPLEMENTED.

    Args:
        manager: The models.
    """

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Tells the state of a model's versions."""
        return _answer(get_model_status, self._manager, request, context)


def _answer(
    run: Callable[[ModelManager, Any], Any],
    manager: ModelManager,
    request: Any,
    context: grpc.ServicerContext,
) -> Any:
    try:
        return run(manager, request)
    except StatusError as error:
        code, details = error.code, error.grpc_details()
    except Exception as error:
        _log.exception("request failed")
        code, details = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
    return context.abort(code, details)


def _require_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")


def _fill_spec(spec: model_pb2.ModelSpec, name: str, version: int) -> None:
    spec.name = name
    spec.version.value = version
