"""The gRPC surface: TensorFlow Serving's PredictionService and ModelService."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from tfde.serving.server.calls import Call, begin_call
from tfde.serving.server.health import Health
from tfde.serving.server.limits import Limits
from tfde.serving.server.reload import ReloadRules, reload_config
from tfde.serving.server.service import InferenceService, get_model_metadata, get_model_status
from tfde.serving.server.status import StatusError

# "No deadline" reaches a handler as some 9e18 seconds, which no timer takes.
_NO_DEADLINE_S = 1e9

_CROWDED_S = 1.0  # for a message while too many are awaited

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who asks: the seconds it still waits, `None` for ever, and whether it is still there."""

    timeout_s: float | None
    is_there: Callable[[], bool]


Run = Callable[[Any, Caller], Message]


def grpc_handlers(
    service: InferenceService,
    limits: Limits,
    *,
    threads: int,
    rules: ReloadRules | None = None,
    health: Health | None = None,
) -> list[grpc.GenericRpcHandler]:
    """Returns what a gRPC server answers with: both services, each RPC on the given models.

    Args:
        service: Answers requests to models.
        limits: How long a request's message may take to come.
        threads: How many threads answer.
        rules: What reloads may do; `None` for everything.
        health: gRPC's own health service, if it answers too.
    """
    manager = service.manager
    arrivals = _Arrivals(limits.body_timeout_s, threads)
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
    handlers = [
        grpc.method_handlers_generic_handler(
            f"tensorflow.serving.{name}",
            {method: _handler(kind, run, arrivals) for method, (kind, run) in methods.items()},
        )
        for name, methods in services.items()
    ]
    return handlers if health is None else [*handlers, _health_handler(health, arrivals)]


def _health_handler(health: Health, arrivals: _Arrivals) -> grpc.GenericRpcHandler:
    kind = health_pb2.HealthCheckRequest

    def watch(
        messages: Iterator[Any], context: grpc.ServicerContext, send_response_callback: Any
    ) -> None:
        try:
            request = _whole(arrivals.first(messages, context))
        except StatusError as error:
            context.abort(error.code, error.grpc_details())
        health.watch(request, context, send_response_callback)

    watch.experimental_non_blocking = True  # type: ignore[attr-defined]  # no thread a watcher
    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health",
        {
            "Check": _handler(kind, lambda request, _: health.check(request), arrivals),
            "Watch": grpc.stream_stream_rpc_method_handler(
                watch,
                request_deserializer=functools.partial(_parse, kind),
                response_serializer=lambda response: response.SerializeToString(),
            ),
        },
    )


def _parse(kind: type[Message], data: bytes) -> Message | DecodeError:
    # gRPC keeps memory for ever of each request whose deserializer raises: ours does not.
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return error


def _whole(request: Message | DecodeError) -> Message:
    if isinstance(request, DecodeError):
        raise StatusError(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
    return request


def _handler(kind: type[Message], run: Run, arrivals: _Arrivals) -> grpc.RpcMethodHandler:
    # Taken as a stream of one message, which is the same on the wire: a unary handler would hold
    # its thread for a message that never comes, and could not be told to give up.
    def answer(messages: Iterator[Message | DecodeError], context: grpc.ServicerContext) -> Any:
        try:
            request = _whole(arrivals.first(messages, context))
            left = context.time_remaining()
            timeout_s = None if left is None or left > _NO_DEADLINE_S else left
            call = Call(timeout_s)
            context.add_callback(call.leave)
            begin_call(call)
            return run(request, Caller(timeout_s, context.is_active))
        except StatusError as error:
            code, details = error.code, error.grpc_details()
        except Exception as error:
            _log.exception("request failed")
            code, details = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        return context.abort(code, details)

    return grpc.stream_unary_rpc_method_handler(
        answer,
        request_deserializer=functools.partial(_parse, kind),
        response_serializer=lambda response: response.SerializeToString(),
    )


class _Arrivals:
    """Waits for the messages of requests, and gives up those that do not come in time.

    Each that is awaited holds a thread. While they hold half of all, their time is a second: so
    those that send nothing keep nobody out for long.

    Args:
        timeout_s: Seconds that a message gets.
        threads: How many threads answer.
    """

    def __init__(self, timeout_s: float, threads: int) -> None:
        self._timeout_s = timeout_s
        self._threads = threads
        self._awaited: dict[grpc.ServicerContext, float] = {}
        self._watching = threading.Lock()
        self._watcher: threading.Thread | None = None

    def first(self, messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Returns the message of a request.

        Raises:
            StatusError: CANCELLED, it did not come in time or its client has left.
        """
        self._awaited[context] = time.monotonic()
        self._watch()
        try:
            return next(messages)
        except StopIteration:
            message = "the request must have a message"
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message) from None
        except grpc.RpcError:
            message = f"the message must come within {self._timeout_s:g} s (--body_timeout_s)"
            raise StatusError(grpc.StatusCode.CANCELLED, message) from None
        finally:
            del self._awaited[context]

    def _watch(self) -> None:
        if self._watcher is not None and self._watcher.is_alive():
            return
        with self._watching:
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._look, name="arrivals", daemon=True)
                self._watcher.start()

    def _look(self) -> None:
        while True:
            time.sleep(0.25)
            now = time.monotonic()
            awaited = list(self._awaited.items())
            crowded = len(awaited) > self._threads // 2
            limit_s = min(self._timeout_s, _CROWDED_S) if crowded else self._timeout_s
            for context, since in awaited:
                if now - since >= limit_s:
                    context.cancel()
