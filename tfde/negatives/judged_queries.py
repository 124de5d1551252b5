"""The queries of a split with what is known to be relevant to each."""

from __future__ import annotations

from typing import NamedTuple

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import normal_words
from tfde.errors import ConfigError
from tfde.types import Query


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
        queries.sort()
        known: dict[str, dict[str, None]] = {}
        for query in queries:
            known.setdefault(_words(query), {}).update(dict.fromkeys(positives[query.query_id]))
        return cls(queries, positives, known)

    def known_positives(self, query: Query) -> list[str]:
        """Returns the ids of all documents that are known to be relevant to the query."""
        return list(self.known[_words(query)])


def _words(query: Query) -> str:
    return " ".join(normal_words(query.text))
