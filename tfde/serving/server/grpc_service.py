"""The gRPC surface: TensorFlow Serving's PredictionService and ModelService."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from tfde.serving.server.model_info import get_model_metadata, get_model_status
from tfde.serving.server.reload import ReloadRules, reload_config
from tfde.serving.server.service import InferenceService
from tfde.serving.server.status import StatusError

# "No deadline" reaches a handler as some 9e18 seconds, which no timer takes.
_NO_DEADLINE_S = 1e9

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who asks: the seconds it still waits, `None` for ever, and whether it is still there."""

    timeout_s: float | None
    is_there: Callable[[], bool]


Run = Callable[[Any, Caller], Message]


def grpc_handlers(
    service: InferenceService, rules: ReloadRules | None = None
) -> list[grpc.GenericRpcHandler]:
    """Returns what a gRPC server answers with: both services, each RPC on the given models.

    Args:
        service: Answers requests to models.
        rules: What reloads may do; `None` for everything.
    """
    manager = service.manager
    services: dict[str, dict[str, tuple[type[Message], Run]]] = {
        "PredictionService": {
            "Predict": (
                predict_pb2.PredictRequest,
                lambda request, caller: service.predict(request, timeout_s=caller.timeout_s),
            ),
            "Classify": (
                classification_pb2.ClassificationRequest,
                lambda request, caller: service.classify(request, timeout_s=caller.timeout_s),
            ),
            "Regress": (
                regression_pb2.RegressionRequest,
                lambda request, caller: service.regress(request, timeout_s=caller.timeout_s),
            ),
            "MultiInference": (
                inference_pb2.MultiInferenceRequest,
                lambda request, caller: service.multi_inference(
                    request, timeout_s=caller.timeout_s
                ),
            ),
            "GetModelMetadata": (
                get_model_metadata_pb2.GetModelMetadataRequest,
                lambda request, _: get_model_metadata(manager, request),
            ),
        },
        "ModelService": {
            "GetModelStatus": (
                get_model_status_pb2.GetModelStatusRequest,
                lambda request, _: get_model_status(manager, request),
            ),
            "HandleReloadConfigRequest": (
                model_management_pb2.ReloadConfigRequest,
                lambda request, caller: reload_config(
                    manager,
                    request,
                    rules,
                    timeout_s=caller.timeout_s,
                    still_wanted=caller.is_there,
                ),
            ),
        },
    }
    return [
        grpc.method_handlers_generic_handler(
            f"tensorflow.serving.{name}",
            {method: _handler(kind, run) for method, (kind, run) in methods.items()},
        )
        for name, methods in services.items()
    ]


def _handler(kind: type[Message], run: Run) -> grpc.RpcMethodHandler:
    # gRPC keeps memory for ever of each request whose deserializer raises: ours does not.
    def parse(data: bytes) -> Message | DecodeError:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            return error

    def answer(request: Message | DecodeError, context: grpc.ServicerContext) -> Any:
        try:
            if isinstance(request, DecodeError):
                raise StatusError(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
            left = context.time_remaining()
            timeout_s = None if left is None or left > _NO_DEADLINE_S else left
            return run(request, Caller(timeout_s, context.is_active))
        except StatusError as error:
            code, details = error.code, error.grpc_details()
        except Exception as error:
            _log.exception("request failed")
            code, details = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        return context.abort(code, details)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=parse,
        response_serializer=lambda response: response.SerializeToString(),
    )
