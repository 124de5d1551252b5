"""Training pairs in memory: texts once, everything else as index arrays."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from tfde.data.ids import id_of_text, key_of
from tfde.data.pairs.batches import padded_width
from tfde.errors import ConfigError, require, shorten
from tfde.types import CONTEXT, Document, Pair, Query


class PairTable(Sequence[Pair]):
    """An immutable list of `Pair` that keeps each query and each document once.

    A query is known by its id: all pairs with that id have one text, and every document that is
    positive in any of them is a known positive of all of them.

    Args:
        pairs: The pairs; read once.

    Raises:
        ConfigError: one id stands for two different queries or documents; margins that are not as
            many as the negatives.

    Attributes:
        queries: The distinct queries.
        documents: The distinct documents, positives and negatives.
        query_rows: Row in `queries` of each pair, (N,) int32.
        positive_rows: Row in `documents` of each pair's positive, (N,) int32.
        negative_rows: Rows in `documents` of all pairs' negatives, (sum,) int32.
        negative_margins: A teacher's margin of the positive over each of these, (sum,) float32;
            NaN where there is none.
        negative_starts: Where each pair's negatives start in `negative_rows`, (N + 1,) int64.
        document_keys: Key of each of `documents`, (documents,) int64; documents of other tables
            have the same where id, title and text are the same.
        known_keys: Keys of the known positives of all `queries`, (sum,) int64.
        known_starts: Where each query's start in `known_keys`, (queries + 1,) int64.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.queries: list[Query] = []
        self.documents: list[Document] = []
        self._known_ids: list[dict[str, None]] = []
        query_row: dict[str, int] = {}
        document_row: dict[str, int] = {}
        query_rows, positive_rows, negative_rows, starts = [], [], [], [0]
        margins: list[float] = []
        for pair in pairs:
            row = query_row.setdefault(pair.query.query_id, len(self.queries))
            if row == len(self.queries):
                self.queries.append(pair.query)
                self._known_ids.append({})
            elif self.queries[row].text != pair.query.text:
                raise ConfigError(
                    f"`pairs`: query id {pair.query.query_id!r} must stand for one text."
                    f" Received: {shorten(self.queries[row].text)}"
                    f" and {shorten(pair.query.text)}"
                )
            query_rows.append(row)
            positive_rows.append(self._row_of(pair.positive, document_row))
            self._known_ids[row].update(
                dict.fromkeys((pair.positive.doc_id, *pair.positive_doc_ids))
            )
            negative_rows += [self._row_of(negative, document_row) for negative in pair.negatives]
            starts.append(len(negative_rows))
            fits = len(pair.margins) in (0, len(pair.negatives))
            require(fits, "margins", f"{len(pair.negatives)}, as the negatives", pair.margins)
            margins += pair.margins or [np.nan] * len(pair.negatives)
        self.query_rows = np.array(query_rows, np.int32)
        self.positive_rows = np.array(positive_rows, np.int32)
        self.negative_rows = np.array(negative_rows, np.int32)
        self.negative_margins = np.array(margins, np.float32)
        self.negative_starts = np.array(starts, np.int64)
        self.document_keys = np.array(
            [document_key(document) for document in self.documents], np.int64
        )
        keys = dict(zip(document_row, self.document_keys.tolist(), strict=True))
        self._set_known(
            [[keys.get(doc_id) or key_of(doc_id) for doc_id in ids] for ids in self._known_ids]
        )

    def known_positives(self, queries: np.ndarray) -> np.ndarray:
        """Returns the keys of the known positives of these queries, 0 = padding.

        Args:
            queries: Rows in `queries`, (B,) int.

        Returns:
            (B, P) int64, P the most that one of them has, rounded up by `padded_width`.
        """
        starts = self.known_starts[queries]
        counts = self.known_starts[queries + 1] - starts
        places = np.arange(padded_width(counts.max(initial=0)))
        inside = places < counts[:, np.newaxis]
        known = np.zeros(inside.shape, np.int64)
        known[inside] = self.known_keys[(starts[:, np.newaxis] + places)[inside]]
        return known

    def with_known_positives(self, more: Sequence[Collection[int]]) -> PairTable:
        """Returns the same pairs, whose queries have more known positives.

        Args:
            more: Keys for each of `queries`.
        """
        table = copy.copy(self)
        table._set_known(
            [list({*own, *keys}) for own, keys in zip(self._known_by_query(), more, strict=True)]
        )
        return table

    @functools.cached_property
    def has_context(self) -> bool:
        """Whether every document has a context, a text."""
        return all(isinstance(document.context, str) for document in self.documents)

    @property
    def max_negatives(self) -> int:
        """The most given negatives that any pair has."""
        return int(np.diff(self.negative_starts).max(initial=0))

    def with_negatives(self, negatives: Mapping[tuple[str, str], Sequence[Document]]) -> PairTable:
        """Returns the same pairs in the same order with other negatives.

        Args:
            negatives: By query id and id of the positive; a pair that is not there has none.
        """
        return PairTable(
            pair._replace(
                negatives=tuple(negatives.get((pair.query.query_id, pair.positive.doc_id), ())),
                margins=(),
            )
            for pair in self
        )

    def __len__(self) -> int:
        return len(self.query_rows)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"`index` must be in [0, {len(self)}). Received: {index}")
        index %= len(self)
        query = self.query_rows[index]
        start, stop = self.negative_starts[index : index + 2]
        margins = self.negative_margins[start:stop].tolist()
        return Pair(
            self.queries[query],
            self.documents[self.positive_rows[index]],
            tuple(self.documents[row] for row in self.negative_rows[start:stop]),
            tuple(self._known_ids[query]),
            () if any(map(math.isnan, margins)) else tuple(margins),
        )

    def __iter__(self) -> Iterator[Pair]:
        return (self[i] for i in range(len(self)))

    def _set_known(self, keys: Sequence[Sequence[int]]) -> None:
        self.known_keys = np.array([key for of_query in keys for key in of_query], np.int64)
        self.known_starts = np.cumsum([0, *map(len, keys)], dtype=np.int64)

    def _known_by_query(self) -> list[list[int]]:
        return [part.tolist() for part in np.split(self.known_keys, self.known_starts[1:-1])]

    def _row_of(self, document: Document, rows: dict[str, int]) -> int:
        row = rows.setdefault(document.doc_id, len(self.documents))
        if row == len(self.documents):
            self.documents.append(document)
        known = self.documents[row]
        for field in ("text", "title", CONTEXT):
            one, other = getattr(known, field), getattr(document, field)
            if one != other:
                raise ConfigError(
                    f"`pairs`: document id {document.doc_id!r} must stand for one document, with"
                    f" one {field}. Received: {shorten(one)} and {shorten(other)}"
                )
        return row


def pool_known_positives(tables: Sequence[PairTable]) -> list[PairTable]:
    """Returns the tables, in each of which a query has its known positives of the others too.

    Queries of two tables are the same where their texts are.
    """
    known: list[dict[str, set[int]]] = []
    for table in tables:
        of_text: dict[str, set[int]] = {}
        for query, keys in zip(table.queries, table._known_by_query(), strict=True):
            of_text.setdefault(query.text, set()).update(keys)
        known.append(of_text)
    pooled = []
    for place, table in enumerate(tables):
        others = [*known[:place], *known[place + 1 :]]
        texts = (query.text for query in table.queries)
        pooled.append(
            table.with_known_positives(
                [set().union(*(other.get(text, ()) for other in others)) for text in texts]
            )
        )
    return pooled


def document_key(document: Document) -> int:
    """Returns the key of a document in batches, never 0."""
    content = id_of_text(document.text, title=document.title)
    # Two corpora may both number their documents from 0.
    return key_of(content if document.doc_id == content else f"{document.doc_id} {content}")
