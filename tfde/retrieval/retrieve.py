"""From queries to a run: with an index, or straight over a corpus that is nowhere stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from tfde.argument_types import typed
from tfde.config.model import ParentConfig
from tfde.data.batched import batched
from tfde.data.metadata import QUERY_FIELDS, metadata_of
from tfde.errors import ConfigError, DataError, MismatchError, require
from tfde.progress import progress_bar
from tfde.retrieval.embeddings_writer import BATCHES_PER_WINDOW, DocumentEncoder, encode_finite
from tfde.retrieval.index_directory import check_doc_ids
from tfde.retrieval.parents import ParentEncoder, ParentModel, in_parents
from tfde.retrieval.top_k import TopK
from tfde.storage.files import check_id
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, read_json_lines, string_field
from tfde.types import Document, Query, Run

_QUERIES_AT_ONCE = 2048


class QueryEncoder(Protocol):
    """What `retrieve` needs of a model; `tfde.DualEncoder` has it."""

    def fingerprint(self) -> str:
        """Returns what changes with the model."""
        ...

    def encode_queries(self, texts: list[str], *, batch_size: int) -> np.ndarray:
        """Returns `(Q, D)` float32."""
        ...


class DualEncoderLike(QueryEncoder, DocumentEncoder, Protocol):
    """A model of queries and documents."""


class QueryIndex(Protocol):
    """What `retrieve` needs of an index; a `LiveIndex` has it too."""

    fingerprint: str

    def search(self, query_embeddings: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores and document ids, `(Q, K)` each."""
        ...


@typed
def retrieve(
    model: QueryEncoder,
    index: QueryIndex,
    queries: Iterable[Query],
    k: int,
    *,
    batch_size: int = 64,
    show_progress: bool = False,
) -> Run:
    """Returns the `k` best documents of each query.

    Args:
        model: A `tfde.DualEncoder`.
        index: An index of embeddings by the same model; one without fingerprint is not checked.
        queries: With ids that differ.
        k: At least 1.
        batch_size: Queries a batch.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        MismatchError: the index was made with another model.
        ConfigError: `k` below 1, or no queries.
        DataError: a query id holds white space or stands twice.
    """
    check_fingerprints(model, index)
    queries = _checked(queries, k)
    run: Run = {}
    with progress_bar(
        total=len(queries), unit="query", desc="retrieve", disable=not show_progress
    ) as bar:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            group = queries[start : start + _QUERIES_AT_ONCE]
            embeddings = model.encode_queries([q.text for q in group], batch_size=batch_size)
            for query, scores, doc_ids in zip(group, *index.search(embeddings, k), strict=True):
                run[query.query_id] = dict(zip(doc_ids, map(float, scores), strict=True))
            bar.update(len(group))
    return run


def retrieve_from_corpus(
    model: DualEncoderLike,
    documents: Iterable[Document],
    queries: Iterable[Query],
    k: int,
    *,
    batch_size: int = 64,
    parents: ParentConfig | None = None,
    total: int | None = None,
    show_progress: bool = False,
) -> Run:
    """Encodes a corpus window by window and returns the `k` exactly best documents of each query.

    Embeddings of documents are dropped once they are scored: memory holds those of the queries,
    the best `k` of each, and the ids.

    Args:
        model: A `tfde.DualEncoder`.
        documents: The corpus; ties keep its order.
        queries: With ids that differ.
        k: At least 1.
        batch_size: Texts a batch.
        parents: As in `encode_corpus`.
        total: Number of documents, for the progress bar.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        ConfigError: `k` below 1, no queries, no documents, or embeddings that are not finite.
        DataError: an id holds white space or stands twice.
    """
    queries = _checked(queries, k)
    query_embeddings = model.encode_queries([q.text for q in queries], batch_size=batch_size)
    if not np.isfinite(query_embeddings).all():
        raise ConfigError("embeddings of queries must be finite; the model gives NaN or infinity.")
    encoder: DocumentEncoder = model
    if parents is not None:
        encoder = ParentEncoder(cast(ParentModel, model), parents)
        documents = in_parents(documents, parents.separator)
    groups = [
        slice(start, start + _QUERIES_AT_ONCE) for start in range(0, len(queries), _QUERIES_AT_ONCE)
    ]
    best = [TopK(len(queries[group]), k) for group in groups]
    doc_ids: list[str] = []
    with progress_bar(total=total, unit="doc", desc="encode", disable=not show_progress) as bar:
        for window in batched(documents, batch_size * BATCHES_PER_WINDOW):
            embeddings = encode_finite(
                encoder, window, batch_size=batch_size, dtype=np.dtype(np.float32)
            )
            for group, top in zip(groups, best, strict=True):
                top.update(query_embeddings[group] @ embeddings.T, len(doc_ids))
            doc_ids.extend(document.doc_id for document in window)
            bar.update(len(window))
    if not doc_ids:
        raise ConfigError("`documents` must hold at least one document. Received: none")
    names = np.array(check_doc_ids(doc_ids, len(doc_ids)), dtype=object)
    run: Run = {}
    for group, top in zip(groups, best, strict=True):
        for query, scores, positions in zip(queries[group], top.scores, top.positions, strict=True):
            run[query.query_id] = dict(zip(names[positions], map(float, scores), strict=True))
    return run


def read_queries(path: str | Path, intake: Intake | None = None) -> Iterator[Query]:
    """Streams queries from JSON Lines with `_id` and `text`, plain or packed.

    Args:
        path: The file.
        intake: Takes bad lines; `None` raises the first.

    Raises:
        DataError: not JSON, a missing or empty field, an id with white space, or an id twice.
    """
    intake = intake or Intake()
    lines: dict[str, int] = {}
    for line, record in read_json_lines(path, intake):
        query = intake.take(_query, path, line, record, lines)
        if query is not None:
            lines[query.query_id] = line
            yield query


def check_fingerprints(model: QueryEncoder, index: QueryIndex) -> None:
    """Refuses an index of another model.

    Raises:
        MismatchError: both fingerprints are known and differ.
    """
    if index.fingerprint and index.fingerprint != model.fingerprint():
        raise MismatchError(
            f"the index was made with model {index.fingerprint}, the queries would be encoded with"
            f" model {model.fingerprint()}; encode the corpus again with this model."
        )


def _checked(queries: Iterable[Query], k: int) -> Sequence[Query]:
    require(k >= 1, "k", "at least 1", k)
    queries = list(queries)
    if not queries:
        raise ConfigError("`queries` must hold at least one query. Received: none")
    seen = set()
    for number, query in enumerate(queries, start=1):
        require(isinstance(query, Query), "queries", "tfde.Query, with ids", query)
        if check_id(query.query_id, "queries", number, "query id") in seen:
            raise DataError("queries", number, "a query id must be unique.", query.query_id)
        seen.add(query.query_id)
    return queries


def _query(path: str | Path, line: int, record: dict[str, Any], lines: dict[str, int]) -> Query:
    query_id = id_field(path, line, record, "_id")
    if query_id in lines:
        rule = f"field '_id' must be unique; line {lines[query_id]} has it too."
        raise DataError(path, line, rule, query_id)
    text = string_field(path, line, record, "text")
    return Query(query_id, text, metadata_of(path, line, record, QUERY_FIELDS))
