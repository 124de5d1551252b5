"""The REST surface as an ASGI application: inference, status, metadata and Prometheus' page."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from concurrent.futures import Executor
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf import json_format
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    regression_pb2,
)

from tfde.serving.server.calls import current_call
from tfde.serving.server.inference import check_predict_method
from tfde.serving.server.json_answers import (
    write_classifications,
    write_error,
    write_outputs,
    write_regressions,
)
from tfde.serving.server.json_requests import read_examples, read_inputs
from tfde.serving.server.json_values import parse_body, signature_of
from tfde.serving.server.request_size import check_strings
from tfde.serving.server.service import InferenceService, get_model_metadata, get_model_status
from tfde.serving.server.signature_runner import DEFAULT_SIGNATURE
from tfde.serving.server.status import HTTP_STATUS, StatusError, invalid_argument

# Version labels are part of the grammar, so that a label gets the same answer as over gRPC.
_VERSION = r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_INFERENCE = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){_VERSION}:(?P<method>classify|regress|predict)", re.IGNORECASE
)
_STATUS = re.compile(
    rf"/v1/models(?:/(?P<name>[^/:]+))?{_VERSION}(?P<metadata>/metadata)?", re.IGNORECASE
)
_INT64_MAX = 2**63 - 1
_MAX_DIGITS = 1000  # of a version; Python refuses to read some thousands
_CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
]

_log = logging.getLogger(__name__)


class RestApi:
    """Answers HTTP requests as TensorFlow Serving's REST API does, behind a `BoundedHttp`.

    Args:
        service: Answers requests to models.
        executor: Runs the requests; the event loop only moves bytes.
        cors: Whether answers allow pages of other origins to read them.
        metrics_path: Where Prometheus finds the metrics; "" for nowhere.
    """

    def __init__(
        self,
        service: InferenceService,
        executor: Executor,
        *,
        cors: bool = False,
        metrics_path: str = "",
    ) -> None:
        self._service = service
        self._executor = executor
        self._cors = _CORS if cors else []
        self._metrics_path = metrics_path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request (the ASGI interface)."""
        message = await receive()
        path = scope["raw_path"].decode("latin-1")
        headers = dict(scope["headers"])
        work = partial(
            self.answer,
            scope["method"],
            path,
            message["body"],
            from_page=re.search(b"https?://", headers.get(b"origin", b"")) is not None,
        )
        loop = asyncio.get_running_loop()
        # With the call of this request, which is not begun if nobody waits for it any more.
        run = contextvars.copy_context().run
        status, content_type, answer = await loop.run_in_executor(self._executor, run, work)
        answer_headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(answer)).encode()),
            *self._cors,
        ]
        await send({"type": "http.response.start", "status": status, "headers": answer_headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(
        self, method: str, path: str, body: bytes, *, from_page: bool = False
    ) -> tuple[int, bytes, bytes]:
        """Returns status, content type and body of the answer to a request.

        Args:
            method: The HTTP verb.
            path: The path as sent, without the query string.
            body: The request's body.
            from_page: Whether a web page's origin came with it.
        """
        if self._metrics_path and path == self._metrics_path:
            return 200, b"text/plain", self._service.metrics.text().encode()
        if not path.lower().startswith("/v1/"):
            return 404, b"text/plain", b"Not Found"
        if method == "OPTIONS":  # a page of another origin asks whether it may ask
            return (200 if from_page else 400), b"text/plain", b""
        try:
            current_call().check()
            return 200, b"application/json", self._route(method, path, body)
        except StatusError as error:
            code, message = error.code, error.message
        except Exception as error:
            _log.exception("request failed")
            code, message = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        return HTTP_STATUS[code], b"application/json", write_error(message)

    def _route(self, method: str, path: str, body: bytes) -> bytes:
        request = _INFERENCE.fullmatch(path) if method == "POST" else None
        if request:
            run = {"predict": self._predict, "classify": self._classify, "regress": self._regress}[
                request["method"].lower()
            ]
            return run(_model_spec(request), body)
        status = _STATUS.fullmatch(path) if method == "GET" else None
        if not status:
            raise invalid_argument("Malformed request: ", method, " ", path)
        if not status["name"]:
            raise invalid_argument("Missing model name in request.")
        if status["metadata"]:
            return self._metadata(_model_spec(status))
        return self._status(_model_spec(status))

    def _predict(self, spec: model_pb2.ModelSpec, body: bytes) -> bytes:
        document = parse_body(body)
        signature_name = signature_of(document)
        with self._service.using(spec, "predict", "REST") as servable:
            runner = servable.runner
            name = signature_name or DEFAULT_SIGNATURE
            if name not in runner.signature_defs:
                # gRPC answers FAILED_PRECONDITION in other words; so does TensorFlow Serving.
                raise invalid_argument(
                    f'Serving signature name: "{name}" not found in signature def'
                )
            if self._service.check_method:
                check_predict_method(runner.signature_defs[name])
            infos = runner.inputs(name)
            if not infos:
                raise invalid_argument(
                    "Failed to get input map for signature: ", signature_name or "DEFAULT"
                )
            inputs, answer_format = read_inputs(document, infos)
            check_strings(inputs, self._service.limits)
            outputs = runner.run(name, inputs, timeout_s=current_call().left_s())
            return write_outputs(outputs, answer_format)

    def _classify(self, spec: model_pb2.ModelSpec, body: bytes) -> bytes:
        request = classification_pb2.ClassificationRequest()
        _read_request(request, spec, body)
        answer = self._service.classify(
            request, timeout_s=current_call().left_s(), entrypoint="REST"
        )
        return write_classifications(answer.result)

    def _regress(self, spec: model_pb2.ModelSpec, body: bytes) -> bytes:
        request = regression_pb2.RegressionRequest()
        _read_request(request, spec, body)
        answer = self._service.regress(
            request, timeout_s=current_call().left_s(), entrypoint="REST"
        )
        return write_regressions(answer.result)

    def _status(self, spec: model_pb2.ModelSpec) -> bytes:
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec)
        return _to_json(get_model_status(self._service.manager, request)).encode()

    def _metadata(self, spec: model_pb2.ModelSpec) -> bytes:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=spec, metadata_field=["signature_def"]
        )
        response = get_model_metadata(self._service.manager, request)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return (
            f'{{\n"model_spec":{_to_json(response.model_spec)},\n'
            f'"metadata": {{"signature_def": {_to_json(signatures)}}}\n}}\n'
        ).encode()


def _read_request(request: Any, spec: model_pb2.ModelSpec, body: bytes) -> None:
    document = parse_body(body)
    request.model_spec.CopyFrom(spec)
    request.model_spec.signature_name = signature_of(document)
    read_examples(document, request.input)


def _model_spec(match: re.Match[str]) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=unquote(match["name"]))
    if match["version"]:
        digits = match["version"]
        if len(digits) > _MAX_DIGITS or int(digits) > _INT64_MAX:
            raise invalid_argument("Failed to convert version: ", digits, " to numeric.")
        spec.version.value = int(digits)
    if match["label"]:
        spec.version_label = unquote(match["label"])
    return spec


def _to_json(message: Any) -> str:
    return json_format.MessageToJson(
        message,
        indent=1,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
