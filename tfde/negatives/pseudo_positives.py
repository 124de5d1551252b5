"""Pseudo-positives: unlabelled candidates that a cross-encoder takes for relevant (RocketQA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tfde.config.negatives import MiningRules
from tfde.negatives.candidate_sources import Ranking
from tfde.negatives.cross_scores import CrossScores
from tfde.negatives.judged_queries import JudgedQueries
from tfde.negatives.selection import ReadText, like_positives
from tfde.types import Query


def find_pseudo_positives(
    queries: Sequence[Query],
    rankings: Mapping[str, Ranking],
    read: Callable[[str], ReadText],
    rules: MiningRules,
    judged: JudgedQueries,
    cross_scores: CrossScores,
) -> dict[str, list[str]]:
    """Returns the ids of each query's pseudo-positives, best ranked first.

    What is judged for the query, the query itself, (nearly) the text of a known positive, and the
    text of a better candidate are passed over. The others are asked about from the first rank on,
    whatever `min_rank` says, until there are enough.

    Args:
        queries: The queries.
        rankings: The candidates of each query id, best first.
        read: Gives a document by id.
        rules: `pseudo_positives`, `min_pseudo_score`, and what is like a positive.
        judged: What is known of the queries.
        cross_scores: The cross-encoder's.

    Source: Qu et al. 2021 (RocketQA), section 4.3.
    """
    waiting = {
        query.query_id: _unlabelled(query, rankings[query.query_id], read, rules, judged)
        for query in queries
    }
    found: dict[str, list[str]] = {query.query_id: [] for query in queries}
    while True:
        asked: list[tuple[Query, str]] = []
        for query in queries:
            left = waiting[query.query_id]
            missing = rules.pseudo_positives - len(found[query.query_id])
            asked += [(query, doc_id) for doc_id in left[:missing]]
            del left[:missing]
        if not asked:
            return found
        for (query, doc_id), score in zip(asked, cross_scores.of(asked), strict=True):
            if rules.is_pseudo_positive(score):
                found[query.query_id].append(doc_id)


def _unlabelled(
    query: Query,
    ranking: Ranking,
    read: Callable[[str], ReadText],
    rules: MiningRules,
    judged: JudgedQueries,
) -> list[str]:
    known = like_positives(ranking, read, rules, judged.known_positives(query), query, first=1)
    known |= dict.fromkeys(judged.refused.get(query.query_id, ()), "judged 0")
    texts: dict[str, str] = {}
    for doc_id, _ in ranking:
        if doc_id not in known:
            texts.setdefault(read(doc_id).words, doc_id)
    return list(texts.values())
