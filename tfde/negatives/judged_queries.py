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

    `queries` and documents stand in the order of their ids; `positives` has those of each query id
    that make a pair with it, `known` all relevant ones of the queries with the same words,
    `refused` those that are judged 0 for it.
    """

    queries: list[Query]
    positives: dict[str, list[str]]
    known: dict[str, dict[str, None]]
    refused: dict[str, list[str]]

    @classmethod
    def read(
        cls, dataset: DatasetDirectory, split: str, *, unlabelled: bool = False
    ) -> JudgedQueries:
        """Returns the queries of a split that have a judgement above 0.

        Args:
            dataset: Queries and judgements.
            split: Whose judgements.
            unlabelled: Whether queries that no split judges stand among them, with no positives.

        Raises:
            ConfigError: no such split, or no such judgement.
            DataError: a record breaks a rule.
        """
        positives = {
            query_id: sorted(relevant) for query_id, relevant in dataset.relevant(split).items()
        }
        queries = [query for query in dataset.queries(split) if positives[query.query_id]]
        if not queries:
            raise ConfigError(f"{dataset.path}: split {split!r} must have a judgement above 0.")
        refused = {
            query_id: [doc_id for doc_id, relevance in judged.items() if relevance <= 0]
            for query_id, judged in dataset.qrels(split).items()
        }
        if unlabelled:
            judged_anywhere = {
                query_id for name in dataset.splits for query_id in dataset.qrels(name)
            }
            more = [q for q in dataset.queries() if q.query_id not in judged_anywhere]
            queries += more
            positives |= {query.query_id: [] for query in more}
        return cls._of(queries, positives, positives, refused)

    @classmethod
    def of_pairs(cls, pairs: Iterable[Pair]) -> JudgedQueries:
        """Returns the queries of training pairs; a pair is made of each positive that has one."""
        queries: dict[str, Query] = {}
        positives: dict[str, set[str]] = {}
        known: dict[str, set[str]] = {}
        for pair in pairs:
            query_id = pair.query.query_id
            queries[query_id] = pair.query
            positives.setdefault(query_id, set()).add(pair.positive.doc_id)
            known.setdefault(query_id, {pair.positive.doc_id}).update(pair.positive_doc_ids)
        return cls._of(queries.values(), _sorted(positives), _sorted(known), {})

    @classmethod
    def _of(
        cls,
        queries: Iterable[Query],
        positives: Mapping[str, list[str]],
        relevant: Mapping[str, list[str]],
        refused: Mapping[str, list[str]],
    ) -> JudgedQueries:
        queries = sorted(queries)
        known: dict[str, dict[str, None]] = {}
        for query in queries:
            known.setdefault(_words(query), {}).update(dict.fromkeys(relevant[query.query_id]))
        return cls(queries, dict(positives), known, dict(refused))

    def checksum(self) -> str:
        """Returns the sha256 (hexadecimal) of queries and positives."""
        digest = hashlib.sha256()
        for query in self.queries:
            digest.update(
                json.dumps([query.query_id, query.text, self.positives[query.query_id]]).encode()
            )
        return digest.hexdigest()

    def known_positives(self, query: Query) -> list[str]:
        """Returns the ids of all documents that are known to be relevant to the query."""
        return list(self.known[_words(query)])


def _sorted(ids: Mapping[str, set[str]]) -> dict[str, list[str]]:
    return {query_id: sorted(doc_ids) for query_id, doc_ids in ids.items()}


def _words(query: Query) -> str:
    return " ".join(normal_words(query.text))
