"""The calls that change a live index; whoever knows the key may use them."""

from __future__ import annotations

import hmac
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import APIRouter
from grpc import StatusCode
from pydantic import AliasChoices, BaseModel, ConfigDict, FailFast, Field, model_validator

from tfde.data.metadata import metadata_of
from tfde.errors import ConfigError
from tfde.retrieval.live.status import LiveStatus
from tfde.serving.application.json_body import JsonRoute
from tfde.serving.application.live_search import LiveSearchService
from tfde.serving.server.bounded_http import Admit
from tfde.serving.server.status import StatusError
from tfde.types import Document

MAX_DOCUMENTS = 1024
_MIN_KEY = 16
_PREFIX = "/v1/index"
_KNOWN = ("id", "title", "text")


class DocumentModel(BaseModel):
    """A document as BEIR's corpus has it; other fields than these are metadata too."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(min_length=1, validation_alias=AliasChoices("id", "_id"))
    title: str = ""
    text: str
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_id(cls, value: Any) -> Any:
        if isinstance(value, dict) and {"id", "_id"} <= value.keys():
            raise ValueError("a document must have one of `id` and `_id`, not both")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.title.strip() or self.text.strip()):
            raise ValueError("a document must have a title or a text")
        return self


class AddRequest(BaseModel):
    """Documents to insert, or to replace those with the same ids: all or none."""

    documents: list[DocumentModel] = Field(min_length=1, max_length=MAX_DOCUMENTS)


class AddResponse(BaseModel):
    """What is on the disk now."""

    documents: int
    sequence: int


class DeleteRequest(BaseModel):
    """Ids of documents to delete."""

    # FailFast: else a reason is made for each that is wrong.
    ids: Annotated[list[str], Field(min_length=1), FailFast()]


class DeleteResponse(BaseModel):
    """What was deleted, and what was not there."""

    deleted: list[str]
    unknown: list[str]
    sequence: int


class CompactionResponse(BaseModel):
    """A compaction began."""

    started: bool


@dataclass(frozen=True)
class ServedStatus(LiveStatus):
    """Sizes of the index; `compaction_error` is why the last compaction failed."""

    compacting: bool
    compaction_error: str


def read_key(path: str | Path) -> str:
    """Reads the key of the calls from a file.

    Raises:
        ConfigError: the file cannot be read, or its key is shorter than 16 characters.
    """
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`--admin_key_file` must be readable. Received: {error}") from None
    if len(key) < _MIN_KEY or not key.isascii():
        raise ConfigError(
            f"{path}: the key must be at least {_MIN_KEY} ASCII characters. Received: {len(key)}"
        )
    return key


def key_check(key: str) -> Admit:
    """Returns what refuses requests under `/v1/index` without the key, before they are read.

    Args:
        key: What a caller sends as `Authorization: Bearer KEY`.
    """
    expected = key.encode()

    def check(scope: Any) -> None:
        # What the router sees, in which `%69ndex` is `index`.
        if not scope["path"].startswith(_PREFIX):
            return
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        same = hmac.compare_digest(given.strip(), expected)
        if not same or scheme.lower() != b"bearer":
            raise StatusError(
                StatusCode.UNAUTHENTICATED, "send the key as `Authorization: Bearer KEY`"
            )

    return check


def create_admin(service: LiveSearchService) -> APIRouter:
    """Returns the calls under `/v1/index`, which `key_check` must guard.

    Args:
        service: The index.
    """
    router = APIRouter(prefix=_PREFIX, tags=["index"], route_class=JsonRoute)

    @router.post("/documents")
    def add(request: AddRequest) -> AddResponse:
        """Inserts or replaces documents; the answer comes when they are on the disk."""
        documents = [
            Document(
                d.id, d.title, d.text, metadata_of("documents", number, d.model_dump(), _KNOWN)
            )
            for number, d in enumerate(request.documents, start=1)
        ]
        return AddResponse(documents=len(documents), sequence=service.add(documents))

    @router.post("/delete")
    def delete(request: DeleteRequest) -> DeleteResponse:
        """Deletes documents; the answer comes when that is on the disk."""
        done = service.delete(request.ids)
        return DeleteResponse(deleted=done.deleted, unknown=done.unknown, sequence=done.sequence)

    @router.post("/compact", status_code=202)
    def compact() -> CompactionResponse:
        """Begins to build the index anew of what is there now; `status` tells the end."""
        if not service.start_compaction():
            raise StatusError(StatusCode.ALREADY_EXISTS, "a compaction is under way")
        return CompactionResponse(started=True)

    @router.get("/status")
    def status() -> ServedStatus:
        """Tells the sizes of the index."""
        sizes, error = service.status()
        return ServedStatus(**asdict(sizes), compacting=service.compacting, compaction_error=error)

    return router
