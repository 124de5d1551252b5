"""The application's HTTP surface: OpenAI-style embeddings, search, health, and the search page.

None of it is TensorFlow Serving's; its own REST API is on a port of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from grpc import StatusCode
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.exceptions import HTTPException

from tfde.errors import CorruptError, MismatchError, TfdeError, shorten
from tfde.serving.application.json_body import JsonRoute
from tfde.serving.application.search_service import SearchService
from tfde.serving.hit import Hit, snippet_of
from tfde.serving.server.bounded_http import Admit, BoundedHttp
from tfde.serving.server.calls import current_call
from tfde.serving.server.limits import Limits
from tfde.serving.server.status import HTTP_STATUS, StatusError
from tfde.version import __version__

MAX_TEXTS = 2048  # as many as OpenAI's own takes
MAX_K = 1000
_THREADS = 256  # as gRPC has
_SHOWN_PATH = 200  # characters of a path that an error says again

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]


class EmbeddingsRequest(BaseModel):
    """What OpenAI's clients send; `model` chooses the tower."""

    model_config = ConfigDict(extra="forbid")

    input: str | Texts
    model: str = "query_encoder"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, strict=True, description="of those that the model was trained for"
    )
    user: str = Field("", description="of no effect")

    @field_validator("input", mode="before")
    @classmethod
    def _is_text(cls, texts: Any) -> Any:
        first = texts[0] if isinstance(texts, list) and texts else None
        if isinstance(first, int) or (isinstance(first, list) and first):
            raise ValueError(
                "token ids are another model's; send text (OpenAIEmbeddings of langchain_openai:"
                " check_embedding_ctx_length=False)"
            )
        return texts


class Embedding(BaseModel):
    """One embedding: numbers, or base64 of float32 in little-endian order."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Embeddings in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelDetail(BaseModel):
    """A model that encodes."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tfde"


class ModelsResponse(BaseModel):
    """The models that encode."""

    object: Literal["list"] = "list"
    data: list[ModelDetail]


class SearchRequest(BaseModel):
    """One query or several."""

    model_config = ConfigDict(extra="forbid")

    query: str | Texts
    k: int = Field(10, ge=1, le=MAX_K, strict=True)
    texts: bool = Field(False, description="whether hits bear their whole texts")

    @field_validator("query")
    @classmethod
    def _says_something(cls, query: str | list[str]) -> str | list[str]:
        if not all(text.strip() for text in ([query] if isinstance(query, str) else query)):
            raise ValueError("a query must not be empty")
        return query


class HitModel(BaseModel):
    """A passage that was found."""

    rank: int
    score: float
    doc_id: str
    title: str
    snippet: str = Field(description="the sentences with most words of the query")
    text: str | None = Field(None, description="the whole text, where it was asked for")
    metadata: dict[str, Any] | None = Field(None, description="left out where there is none")


class SearchResult(BaseModel):
    """The passages of one query, best first."""

    query: str
    hits: list[HitModel]


class SearchResponse(BaseModel):
    """Results in the order of the queries, and what found them."""

    results: list[SearchResult]
    retriever: str
    version: int
    index_version: str


class ErrorDetail(BaseModel):
    """What is wrong, in one line."""

    message: str
    type: str


class ErrorResponse(BaseModel):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


def create_app(service: SearchService, *, admin: APIRouter | None = None) -> FastAPI:
    """Returns the ASGI application; `/openapi.json` describes it.

    Args:
        service: Finds and encodes.
        admin: Calls that change the index, if there are to be any.
    """
    app = FastAPI(
        title="tfde retrieval",
        version=__version__,
        description="Search and embeddings of a served bundle.",
        responses={400: {"model": ErrorResponse}, 503: {"model": ErrorResponse}},
        docs_url=None,  # it would load its script from another place
        redoc_url=None,
    )

    app.router.route_class = JsonRoute
    app.add_middleware(_JsonWhateverItIsCalled)

    @app.exception_handler(StatusError)
    def refused(_: Request, error: StatusError) -> JSONResponse:
        return _error(HTTP_STATUS[error.code], error.message, error.code.name)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(400, _explain(error.errors()), "INVALID_ARGUMENT")

    @app.exception_handler(HTTPException)
    def no_such_call(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path[:_SHOWN_PATH]
        message = f"{request.method} {path}: {error.detail}"
        kinds = {404: "NOT_FOUND", 405: "UNIMPLEMENTED"}
        kind = kinds.get(error.status_code, "INVALID_ARGUMENT")
        return _error(error.status_code, message, kind, headers=error.headers)

    @app.exception_handler(TfdeError)
    def impossible(_: Request, error: TfdeError) -> JSONResponse:
        status, kind = (
            (409, "ABORTED") if isinstance(error, MismatchError) else (400, "INVALID_ARGUMENT")
        )
        return _error(status, str(error), kind)

    @app.exception_handler(CorruptError)
    def damaged(_: Request, error: CorruptError) -> JSONResponse:
        return _error(500, str(error), "DATA_LOSS")

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:  # which the log then tells
        return _error(500, f"{type(error).__name__}: {error}", "INTERNAL")

    @app.exception_handler(OSError)
    def unwritable(_: Request, error: OSError) -> JSONResponse:
        return _error(503, f"the index cannot be changed: {error}", "UNAVAILABLE")

    if admin is not None:
        app.include_router(admin)

    @app.post("/v1/embeddings", response_model=EmbeddingsResponse)
    def embeddings(request: EmbeddingsRequest) -> Response:
        """Encodes texts, as OpenAI's API of this name does."""
        texts = [request.input] if isinstance(request.input, str) else request.input
        made = service.embed(texts, model=request.model, dimensions=request.dimensions)
        as_base64 = request.encoding_format == "base64"
        return _written(
            EmbeddingsResponse(
                data=[
                    Embedding(index=index, embedding=_base64(row) if as_base64 else row.tolist())
                    for index, row in enumerate(made.embeddings)
                ],
                model=request.model,
                usage=Usage(prompt_tokens=made.tokens, total_tokens=made.tokens),
            )
        )

    @app.post("/v1/search", response_model=SearchResponse)
    def search(request: SearchRequest) -> Response:
        """Finds the best passages for each query."""
        queries = [request.query] if isinstance(request.query, str) else request.query
        found = service.search(queries, request.k)
        return _written(
            SearchResponse(
                results=[
                    SearchResult(query=query, hits=[_shown(hit, query, request) for hit in hits])
                    for query, hits in zip(queries, found.hits, strict=True)
                ],
                retriever=service.retriever,
                version=found.version,
                index_version=found.index_version,
            )
        )

    @app.get("/v1/models", response_model=ModelsResponse)
    def models() -> ModelsResponse:
        """Lists what `/v1/embeddings` takes as `model`, as OpenAI's API of this name does."""
        return ModelsResponse(data=[ModelDetail(id=name) for name in service.encoders()])

    @app.get("/v1/models/{name}", response_model=ModelDetail)
    def model(name: str) -> ModelDetail:
        """Tells of one of them."""
        if name not in (known := service.encoders()):
            raise StatusError(
                StatusCode.NOT_FOUND,
                f"`model` must be one of {', '.join(known)}. Received: {shorten(name)!r}",
            )
        return ModelDetail(id=name)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:  # in no thread: searches may hold them all
        """Answers 200 while the process lives."""
        return Response("ok\n", media_type="text/plain")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Answers 200 when every model can be asked, else 503: `loading`, or `stalled`.

        After `loading` stand the models that cannot be asked yet; others are answered meanwhile.
        """
        state = service.state()
        missing = service.missing() if state == "loading" else []
        text = f"{state}: {', '.join(missing)}\n" if missing else f"{state}\n"
        return Response(text, 200 if state == "ready" else 503, media_type="text/plain")

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(_PAGE, headers=_PAGE_HEADERS)

    return app


def bounded(app: FastAPI, limits: Limits, *, admit: Admit | None = None) -> BoundedHttp:
    """Returns the application as a port serves it, within the limits.

    Args:
        app: What `create_app` returned.
        limits: The bounds.
        admit: Refuses requests before their bodies are read.
    """
    return BoundedHttp(
        app, limits, timeout_s=limits.request_timeout_s, write=_error_body, admit=admit
    )


_PAGE = resources.files(__package__).joinpath("page.html").read_text("utf-8")
# The page holds its own script and style and loads nothing from anywhere.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}


class _JsonWhateverItIsCalled:
    """Takes a body as JSON though `curl -d` calls it a form, as TensorFlow Serving does."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Large requests wait in threads for their turn: of anyio's 40 none was left to others.
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        if scope["type"] == "http":
            kept = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope = {**scope, "headers": [*kept, (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


def _explain(errors: Sequence[Any]) -> str:
    """Returns one line on the first field that is wrong; what may be of two types fails in both."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body must be JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
    field = first["loc"][1:2]
    reasons = list(dict.fromkeys(e["msg"] for e in errors if e["loc"][1:2] == field))
    received = f" Received: {shorten(first['input'])}" if "input" in first else ""
    # Of a list's entry the place and the field too: documents.0.id.
    within = first["loc"][1:] if isinstance(first["loc"][-1], str) and reasons[1:] == [] else field
    return f"`{'.'.join(map(str, within)) or 'body'}`: {', or '.join(reasons)}.{received}"


def _shown(hit: Hit, query: str, request: SearchRequest) -> HitModel:
    current_call().check()  # a snippet takes time, and there may be thousands
    fields = hit.record()
    if not request.texts:
        del fields["text"]
    return HitModel(**fields, snippet=snippet_of(hit.text, query))


def _error_body(code: StatusCode, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": code.name}}).encode()


def _written(answer: BaseModel) -> Response:
    """Returns an answer as JSON, written here: FastAPI would write it on the event loop."""
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


def _error(
    status: int, message: str, kind: str, *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind}}, status, headers)


def _base64(row: np.ndarray) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
