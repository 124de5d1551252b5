"""Asks a model server, ours or TensorFlow Serving, for passages and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import grpc
import numpy as np

from tfde.argument_types import typed
from tfde.errors import ServerError, require, shorten, utf8_fault
from tfde.serving import wire
from tfde.serving.hit import Hit, Passage, make_hits, read_passages

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A name that stands for several servers means all of them, not the first.
    ("grpc.lb_policy_name", "round_robin"),
    # A server that starts again is found at once; gRPC would let up to two minutes pass.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
]
_URLS = ("http://", "https://")
_TRIES = 3  # of a search whose version goes before its texts are read
_STATES = {0: "UNKNOWN", 10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}


class Client:
    """A connection to a server that serves a bundle.

    Args:
        target: `HOST:PORT` of the server's gRPC port. Requests take turns where the host's name
            has several addresses.
        timeout_s: Seconds to wait for one answer.
        model: The retriever to ask (a bundle has `retriever` and perhaps `retriever_scann`).
        credentials: Of `grpc.ssl_channel_credentials`, for a server that speaks TLS.

    Raises:
        ConfigError: the target is a URL.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 30.0,
        model: str = "retriever",
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        rule = "HOST:PORT of the gRPC port, without http://, which has a port of its own"
        require(not target.startswith(_URLS), "target", rule, target)
        with_port = ":" in target or "/" in target  # another resolver's, a socket's
        require(with_port, "target", "HOST:PORT, such as localhost:8500", target)
        self.target = target
        self.model = model
        self._timeout_s = timeout_s
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        self._prediction = wire.prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = wire.model_service_pb2_grpc.ModelServiceStub(self._channel)

    @overload
    def search(self, texts: str, k: int = 10) -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, texts: Sequence[str], k: int = 10) -> list[list[Hit]]: ...
    @typed
    def search(self, texts: str | Sequence[str], k: int = 10) -> list[Hit] | list[list[Hit]]:
        """Finds the best documents for each query.

        Args:
            texts: The queries, or one.
            k: How many documents a query gets, at most.

        Returns:
            One list a query, best first; of one query, its list. Titles, texts and metadata come
            from the model `documents`, of the retriever's version; they are "" and `None` where it
            has none.

        Raises:
            ConfigError: neither a text nor a list.
            ServerError: the server does not answer or refuses.
        """
        queries = _queries(texts)
        for _ in range(_TRIES):
            response = self._predict(self.model, {"text": queries}, k=k)
            doc_ids = wire.strings(response.outputs["doc_ids"])
            scores = wire.floats(response.outputs["scores"])
            version = response.model_spec.version.value
            passages = self._passages(sorted(set(doc_ids.ravel())), version)
            if passages is not None:
                hits = make_hits(doc_ids, scores, passages)
                return hits[0] if isinstance(texts, str) else hits
        raise ServerError(
            f"{self.target}: versions of {self.model} went {_TRIES} times before their texts could"
            " be asked for; ask again"
        )

    def encode_queries(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns query embeddings (Q, D) float32; (D,) of one text.

        Raises:
            ConfigError: neither a text nor a list.
            ServerError: the server does not answer or refuses.
        """
        queries = _queries(texts)
        response = self._predict("query_encoder", {"text": queries})
        embeddings = wire.floats(response.outputs["embeddings"])
        return embeddings[0] if isinstance(texts, str) else embeddings

    def encode_documents(
        self,
        texts: Sequence[str],
        *,
        titles: Sequence[str] | None = None,
        contexts: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Returns document embeddings (B, D) float32.

        Args:
            texts: The documents' texts.
            titles: Their titles; `None` means none has one.
            contexts: Their contexts, for a model that reads them ("" where there is none); else
                `None`.

        Raises:
            ServerError: the server does not answer or refuses.
            ValueError: there are not as many titles, or contexts, as texts.
        """
        inputs = {"text": _as_list("texts", texts)}
        inputs["title"] = [""] * len(texts) if titles is None else _as_list("titles", titles)
        if contexts is not None:
            inputs["context"] = _as_list("contexts", contexts)
        for name, column in inputs.items():
            if len(column) != len(inputs["text"]):
                raise ValueError(
                    f"`{name}s` must be as many as `texts`."
                    f" Received: {len(column)} and {len(texts)}"
                )
        response = self._predict("document_encoder", inputs)
        return wire.floats(response.outputs["embeddings"])

    def status(self, model: str | None = None) -> dict[int, str]:
        """Returns the state of each version of a model, `AVAILABLE` when it can be asked.

        Of a version that could not be loaded the reason follows: `END: reason`.

        Args:
            model: The model; `None` means this client's retriever.

        Raises:
            ServerError: the server does not answer or does not know the model.
        """
        request = wire.get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = model or self.model
        response = self._call(self._models.GetModelStatus, request, model or self.model)
        return {
            status.version: _STATES.get(status.state, str(status.state))
            + (f": {status.status.error_message}" if status.status.error_code else "")
            for status in response.model_version_status
        }

    def served(self, models: Iterable[str]) -> list[str]:
        """Returns those of the models that the server knows.

        Raises:
            ServerError: the server does not answer.
        """
        known = []
        for model in models:
            try:
                self.status(model)
                known.append(model)
            except ServerError as error:
                cause = error.__cause__
                if not (isinstance(cause, grpc.RpcError) and _is_not_found(cause)):
                    raise
        return known

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _passages(self, doc_ids: list[str], version: int) -> dict[str, Passage] | None:
        """Passages by id; `None` where the version has gone since it was asked."""
        if not doc_ids:
            return {}
        try:
            outputs = self._predict("documents", {"doc_ids": doc_ids}, version=version).outputs
        except ServerError as error:
            if isinstance(error.__cause__, grpc.RpcError) and _is_not_found(error.__cause__):
                return None if self.served(["documents"]) else {}
            raise
        metadata = wire.strings(outputs["metadata"]) if "metadata" in outputs else None
        titles, texts = wire.strings(outputs["titles"]), wire.strings(outputs["texts"])
        return read_passages(doc_ids, titles, texts, metadata)

    def _predict(
        self,
        model: str,
        texts: dict[str, list[str]],
        *,
        k: int | None = None,
        version: int | None = None,
    ) -> Any:
        request = wire.predict_pb2.PredictRequest()
        request.model_spec.name = model
        if version is not None:
            request.model_spec.version.value = version
        for name, values in texts.items():
            wire.put_strings(request.inputs[name], values)
        if k is not None:
            wire.put_int32(request.inputs["k"], k)
        return self._call(self._prediction.Predict, request, model)

    def _call(self, method: Callable[..., Any], request: Any, model: str) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise ServerError(self._explain(error, model)) from error

    def _explain(self, error: Any, model: str) -> str:
        details = (error.details() or "").strip().splitlines()
        reason = details[0] if details else error.code().name
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return f"cannot connect to {self.target} (is the server running?): {reason}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{self.target} did not answer within {self._timeout_s:g} s (model {model!r})"
        if _is_not_found(error):
            how = (
                "; a bundle has it where tfde export was given --embeddings or --index. What tfde"
                " serve --index searches is asked over HTTP: tfde query --target http://..."
            )
            added = how if model.startswith("retriever") else ""
            return f"{self.target} serves no model {model!r}: {reason}{added}"
        return f"{self.target} refused the request to {model!r}: {error.code().name}: {reason}"


def _is_not_found(error: Any) -> bool:
    return bool(error.code() is grpc.StatusCode.NOT_FOUND)


def _queries(texts: str | Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    require(isinstance(texts, Iterable), "texts", "a text or a list of texts", texts)
    queries = list(texts)
    for query in queries:
        require(isinstance(query, str), "texts", "a text or a list of texts", query)
    return _written("texts", queries)


def _as_list(name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"`{name}` must be a list of strings. Received: {shorten(texts)}")
    return _written(name, list(texts))


def _written(name: str, texts: list[str]) -> list[str]:
    """Refuses a text that UTF-8 cannot write: half of a surrogate pair, from somebody's JSON."""
    for text in texts:
        fault = utf8_fault(text)
        require(fault is None, name, "texts that UTF-8 can write", f"one with {fault}")
    return texts
