"""The queries of a split with what is known to be relevant to each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import normal_words
from tfde.errors import ConfigError
from tfde.types import Pair, Query


class JudgedQueries(NamedTuple):
    """Queries with a positive.

    `queries` and documents stand in the order of their ids; `positives` has the judged ones of each
    query id, `known` those of all queries with the same words.
    """

    queries: list[Query]
    positives: dict[str, list[str]]
    known: dict[str, dict[str, None]]

    @classmethod
    def read(cls, dataset: DatasetDirectory, split: str) -> JudgedQueries:
        """Returns the queries of a split that have a judgement above 0.

        Raises:
            ConfigError: no such split, or no such judgement.
            DataError: a record breaks a rule.
        """
        positives = {
            query_id: sorted(doc_id for doc_id, relevance in judged.items() if relevance > 0)
            for query_id, judged in dataset.qrels(split).items()
        }
        queries = [query for query in dataset.queries(split) if positives[query.query_id]]
        if not queries:
            raise ConfigError(f"{dataset.path}: split {split!r} must have a judgement above 0.")
        return cls._of(queries, positives)

    @classmethod
    def of_pairs(cls, pairs: Iterable[Pair]) -> JudgedQueries:
        """Returns the queries of training pairs."""
        queries: dict[str, Query] = {}
        found: dict[str, dict[str, None]] = {}
        for pair in pairs:
            queries[pair.query.query_id] = pair.query
            known = (pair.positive.doc_id, *pair.positive_doc_ids)
            found.setdefault(pair.query.query_id, {}).update(dict.fromkeys(known))
        return cls._of(queries.values(), {name: sorted(ids) for name, ids in found.items()})

    @classmethod
    def _of(cls, queries: Iterable[Query], positives: Mapping[str, list[str]]) -> JudgedQueries:
        queries = sorted(queries)
        known: dict[str, dict[str, None]] = {}
        for query in queries:
            known.setdefault(_words(query), {}).update(dict.fromkeys(positives[query.query_id]))
        return cls(queries, dict(positives), known)

    def checksum(self) -> str:
        """Returns the sha256 (hexadecimal) of queries and positives."""
        digest = hashlib.sha256()
        for query in self.queries:
            digest.update(json.dumps([*query, self.positives[query.query_id]]).encode())
        return digest.hexdigest()

    def known_positives(self, query: Query) -> list[str]:
        """Returns the ids of all documents that are known to be relevant to the query."""
        return list(self.known[_words(query)])


def _words(query: Query) -> str:
    return " ".join(normal_words(query.text))
