"""Search and embeddings on the models of a bundle, in the process that serves them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from grpc import StatusCode
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tfde.environment import usable_cores
from tfde.serving.hit import Hit, Passage, make_hits, read_passages
from tfde.serving.server.calls import current_call
from tfde.serving.server.inference import Servable
from tfde.serving.server.limits import Limits
from tfde.serving.server.request_size import encoded_texts
from tfde.serving.server.service import InferenceService
from tfde.serving.server.signature_runner import DEFAULT_SIGNATURE
from tfde.serving.server.status import StatusError, invalid_argument, not_found
from tfde.serving.server.versions import read_server_config
from tfde.types import CONTEXT

MAX_HITS = 20_000  # of an answer
_TOKENIZE = "tokenize"
_DIMENSIONS = "dimensions_"  # and a number: the signature of so many first numbers
_ROWS = 128
_FEW_ROWS = 16
Arrays = dict[str, np.ndarray]
QUERY_ENCODER, DOCUMENT_ENCODER, DOCUMENTS = "query_encoder", "document_encoder", "documents"
NO_RETRIEVER = (
    "no retriever is served, so nothing can be searched. A bundle has one where tfde export was"
    " given --embeddings (of tfde encode) or --index (of tfde build-index); tfde serve --models"
    " must not leave it out."
)


class Found(NamedTuple):
    """The hits of each query, the version of the models and the state of the index behind them."""

    hits: list[list[Hit]]
    version: int
    index_version: str


class Embedded(NamedTuple):
    """Embeddings (B, D) float32, and how many tokens they read."""

    embeddings: np.ndarray
    tokens: int


class SearchService:
    """Answers with passages where a model server answers with tensors.

    All models of an answer are of one version: a retriever never stands beside the texts or
    the encoder of another one.

    Args:
        service: Runs the models.
        retriever: The retriever to ask.
    """

    def __init__(self, service: InferenceService, retriever: str) -> None:
        self._service = service
        self.retriever = retriever

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        return self._service.limits

    def state(self) -> Literal["ready", "loading", "stalled"]:
        """Whether it can be asked: a model may have no version yet, or may not get on."""
        manager = self._service.manager
        if manager.stalled_s() >= self.limits.stalled_after_s:
            return "stalled"
        return "ready" if manager.ready() else "loading"

    def missing(self) -> list[str]:
        """Returns the models that cannot be asked yet."""
        return self._service.manager.missing()

    def encoders(self) -> list[str]:
        """Returns the names of the models that `embed` takes."""
        knows = self._service.manager.knows
        return [name for name in (QUERY_ENCODER, DOCUMENT_ENCODER) if knows(name)]

    def search(self, queries: Sequence[str], k: int) -> Found:
        """Finds the best documents for each query.

        Args:
            queries: Texts.
            k: How many documents a query gets, at most.

        Raises:
            StatusError: NOT_FOUND, no retriever is served; UNAVAILABLE, it is still loading; a
                model refuses; more hits than an answer may have; a
                text that is too long or cannot be written in UTF-8.
        """
        current_call().check()
        check_size(queries, k)
        texts = encoded_texts("query", queries, self.limits)
        with self._using([self.retriever, DOCUMENTS], "Search") as servables:
            servable = servables[self.retriever]
            inputs = {"text": texts, "k": np.array(k, np.int32)}
            found = run_in_parts(lambda part: run_while_awaited(servable, "", part), inputs)
            version = servable.version
            doc_ids = [[doc_id.decode() for doc_id in row] for row in found["doc_ids"]]
            wanted = {doc_id for row in doc_ids for doc_id in row}
            passages = find_passages(wanted, servables.get(DOCUMENTS))
        # A retriever holds its index: both change with its version.
        return Found(make_hits(doc_ids, found["scores"], passages), version, str(version))

    def embed(
        self,
        texts: Sequence[str],
        *,
        model: str = QUERY_ENCODER,
        dimensions: int | None = None,
    ) -> Embedded:
        """Encodes texts and counts their tokens.

        Args:
            texts: Queries, or documents without a title or a context.
            model: `query_encoder` or `document_encoder`.
            dimensions: Only so many first numbers of each embedding, where the model was trained
                for it; `None` for all.

        Raises:
            StatusError: NOT_FOUND for another model, or one that is not served; UNAVAILABLE, it
                is still loading; INVALID_ARGUMENT, it was not trained for `dimensions`; it refuses;
                as `search` for texts.
        """
        if model not in (QUERY_ENCODER, DOCUMENT_ENCODER):
            raise StatusError(
                StatusCode.NOT_FOUND,
                f"`model` must be {QUERY_ENCODER} or {DOCUMENT_ENCODER}. Received: {model!r}",
            )
        current_call().check()
        inputs = {"text": encoded_texts("input", texts, self.limits)}
        if model == DOCUMENT_ENCODER:
            inputs["title"] = np.array([b""] * len(texts), object)
        with self._using([model], "Embeddings") as servables:
            servable = servables[model]
            if reads_context(servable):
                inputs[CONTEXT] = np.array([b""] * len(texts), object)
            signature = _signature(servable, dimensions)

            def encode(part: Arrays) -> Arrays:
                tokens = np.zeros(len(part["text"]), np.int64)
                if _TOKENIZE in servable.runner.signature_defs:  # a SavedModel of others has none
                    tokens = run_while_awaited(servable, _TOKENIZE, part)["padding_mask"].sum(1)
                embeddings = run_while_awaited(servable, signature, part)["embeddings"]
                return {"embeddings": embeddings, "tokens": tokens}

            found = run_in_parts(encode, inputs)
            return Embedded(found["embeddings"], int(found["tokens"].sum()))

    @contextmanager
    def _using(self, models: Sequence[str], api: str) -> Iterator[dict[str, Servable]]:
        """Holds one version of models; says what a user can do where they are not there."""
        with ExitStack() as stack:
            try:
                servables = stack.enter_context(self._service.using_all(models, api, "HTTP"))
            except StatusError as error:
                raise self._explained(error, models) from error
            yield servables

    def _explained(self, error: StatusError, models: Sequence[str]) -> StatusError:
        if error.code is not StatusCode.NOT_FOUND:
            return error
        manager, model = self._service.manager, models[0]
        waits = manager.missing()
        loads = manager.knows(model) and not set(models).isdisjoint(waits)
        if loads or not (waits or manager.ready()):  # or nothing has begun
            message = "the models are still loading; /readyz says when they can be asked."
            return StatusError(StatusCode.UNAVAILABLE, message)
        if manager.knows(model):
            return error
        if model == self.retriever:
            return not_found(NO_RETRIEVER)
        return not_found(f"{model} is not served; tfde serve --models must not leave it out.")


def find_passages(doc_ids: set[str], documents: Servable | None) -> dict[str, Passage]:
    """Returns passages by id; nothing where the bundle has no texts."""
    if documents is None:
        return {}
    wanted = sorted(doc_ids)
    found = documents.runner.run("", {"doc_ids": np.array(wanted, object)})
    names = ("titles", "texts", "metadata")
    columns = ([row.decode() for row in found[name]] if name in found else None for name in names)
    return read_passages(wanted, *columns)  # type: ignore[arg-type]  # the first two are there


def run_while_awaited(servable: Servable, signature_name: str, inputs: Arrays) -> Arrays:
    """Runs a model within the time of the request that asks for it.

    Many texts at once wait for their turn, so that they never fill the queue of a model, which
    would refuse the next client's single question.

    Raises:
        StatusError: the model refuses, or nobody waits any more.
    """
    with ExitStack() as stack:
        if max(array.size for array in inputs.values()) > _FEW_ROWS:
            left = current_call().left_s()
            runs = _large_runs()
            if runs.acquire(timeout=-1 if left is None else max(left, 0.0)):
                stack.callback(runs.release)
            current_call().check()
        return servable.runner.run(signature_name, inputs, timeout_s=current_call().left_s())


@functools.cache
def _large_runs() -> threading.BoundedSemaphore:
    # One a core runs; of the four that may wait behind them (batching.config), two are left to
    # others.
    return threading.BoundedSemaphore(usable_cores() + 2)


def reads_context(servable: Servable) -> bool:
    """Returns whether a document tower reads what a document's text is a part of."""
    return CONTEXT in servable.runner.signature_defs[DEFAULT_SIGNATURE].inputs


def _signature(servable: Servable, dimensions: int | None) -> str:
    """Returns the signature whose embeddings have so many numbers.

    Raises:
        StatusError: INVALID_ARGUMENT, there is none.
    """
    if dimensions is None:
        return DEFAULT_SIGNATURE
    signatures = servable.runner.signature_defs
    shape = signatures[DEFAULT_SIGNATURE].outputs["embeddings"].tensor_shape
    known = {shape.dim[-1].size: DEFAULT_SIGNATURE}
    for name in signatures:
        if name.startswith(_DIMENSIONS):
            known.setdefault(int(name.removeprefix(_DIMENSIONS)), name)
    if dimensions not in known:
        raise invalid_argument(
            f"`dimensions` must be {' or '.join(map(str, sorted(known)))}, which the model was"
            f" trained for. Received: {dimensions}"
        )
    return known[dimensions]


def check_size(queries: Sequence[str], k: int) -> None:
    """Refuses answers of more than 20,000 hits, whose texts would all be in memory.

    Raises:
        StatusError: INVALID_ARGUMENT.
    """
    if len(queries) * k > MAX_HITS:
        raise invalid_argument(
            f"`k` must be at most {MAX_HITS // len(queries)} for {len(queries)} queries, which are"
            f" {MAX_HITS} hits together. Received: {k}"
        )


def run_in_parts(run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays:
    """Runs a model on at most 128 texts at once, those of like length together.

    All at once they would be padded to the longest of all, in memory that grows with their number.

    Args:
        run: The model: inputs to outputs, a row of each for each row of texts.
        inputs: Arrays (N,) of texts; what has no rows goes to each part as it is.

    Returns:
        The outputs, rows in the order of the inputs.
    """
    texts = [array for array in inputs.values() if array.ndim]
    if len(texts[0]) <= _ROWS:
        return run(inputs)
    lengths = [sum(map(len, row)) for row in zip(*texts, strict=True)]
    order = np.argsort(lengths, kind="stable")
    found = [
        run({name: array[rows] if array.ndim else array for name, array in inputs.items()})
        for rows in np.split(order, range(_ROWS, len(order), _ROWS))
    ]
    back = np.argsort(order)
    return {name: np.concatenate([part[name] for part in found])[back] for name in found[0]}


def bundle_models(bundle: str | Path, *, scann: bool) -> ModelServerConfig:
    """Reads a bundle's configuration; its `/models/...` become directories of the bundle.

    Args:
        bundle: The bundle.
        scann: Whether to serve the models that need ScaNN's ops too.

    Raises:
        FileNotFoundError: no bundle there.
        StatusError: its configuration does not parse.
    """
    bundle = Path(bundle).absolute()
    path = bundle / ("models.scann.config" if scann else "models.config")
    if not path.is_file():
        raise FileNotFoundError(f"{bundle}: no {path.name} there, so no bundle.")
    config = read_server_config(path)
    for model in config.model_config_list.config:
        base_path = PurePosixPath(model.base_path)
        if base_path.is_relative_to("/models"):
            model.base_path = str(bundle.joinpath("models", base_path.relative_to("/models")))
    return config
