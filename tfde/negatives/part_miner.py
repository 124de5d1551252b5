"""The negatives of some queries: candidates, removal, choice, and the lines of the pair file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from tfde.config.negatives import MiningRules
from tfde.data.document_file import DocumentFile
from tfde.data.metadata import document_texts
from tfde.errors import DataError
from tfde.negatives.candidate_sources import CandidateSource, Ranking
from tfde.negatives.cross_scores import CrossScores, ScoresPairs
from tfde.negatives.judged_queries import JudgedQueries
from tfde.negatives.pseudo_positives import find_pseudo_positives
from tfde.negatives.selection import (
    ReadText,
    choice_order,
    keep_negatives,
    like_positives,
    read_text,
)
from tfde.types import Document, Query

_TEXTS_IN_MEMORY = 8192


@dataclass
class _MinedPair:
    query: Query
    positive: Document
    score: float | None
    is_pseudo: bool = False
    waiting: Ranking = field(default_factory=list)  # in the order of the choice
    negatives: Ranking = field(default_factory=list)
    cross_score: float = 0.0
    cross_scores: list[float] = field(default_factory=list)


class PartMiner:
    """Finds the negatives of any part of the queries.

    Args:
        source: Who ranks the candidates; prepared before `mine` is called.
        store: The documents by id.
        judged: All queries of the split.
        rules: What is left out and what is taken.
        documents: Whether lines name documents by id or hold their texts.
        cross_encoder: Throws out candidates that it takes for relevant, or makes positives of them.
    """

    def __init__(
        self,
        source: CandidateSource,
        store: DocumentFile,
        judged: JudgedQueries,
        rules: MiningRules,
        *,
        documents: Literal["ids", "texts"],
        cross_encoder: ScoresPairs | None,
    ) -> None:
        self._source = source
        self._store = store
        self._judged = judged
        self._rules = rules
        self._documents = documents
        self._cross_encoder = cross_encoder
        self._read = lru_cache(maxsize=_TEXTS_IN_MEMORY)(self._read_text)

    def mine(self, queries: Sequence[Query]) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Returns the lines of the queries' pairs, and the counts of `MiningReport`.

        Raises:
            DataError: a candidate is no document of the dataset.
            ConfigError: the cross-encoder gives no number.
        """
        rules, counts = self._rules, Counter[str]()
        found = self._source.search(queries, rules.max_rank)
        rankings = {query.query_id: found for query, found in zip(queries, found, strict=True)}
        cross_scores, pseudo = None, dict[str, list[str]]()
        if self._cross_encoder is not None:
            cross_scores = CrossScores(
                self._cross_encoder, lambda one: self._read(one).document, rules.cross_label
            )
            if rules.pseudo_positives:
                pseudo = find_pseudo_positives(
                    queries, rankings, self._read, rules, self._judged, cross_scores
                )
        pairs = self._pairs(queries, rankings, pseudo)
        ruled_out = {}
        for query in queries:
            taken = pseudo.get(query.query_id, [])
            positives = [*self._judged.known_positives(query), *taken]
            counts["without_positive"] += not (self._judged.positives[query.query_id] or taken)
            ruled_out[query.query_id] = like_positives(
                rankings[query.query_id], self._read, rules, positives, query, first=rules.min_rank
            ) | dict.fromkeys(taken, "pseudo_positive")
        for pair in pairs:
            ranking = rankings[pair.query.query_id]
            counts["candidates"] += len(ranking)
            kept = keep_negatives(
                ranking,
                self._read,
                rules,
                ruled_out=ruled_out[pair.query.query_id],
                positive_score=pair.score,
                removed=counts,
            )
            order = choice_order(
                [score for _, score in kept],
                rules,
                query_id=pair.query.query_id,
                doc_id=pair.positive.doc_id,
            )
            pair.waiting = [kept[place] for place in order]
        if cross_scores is None:
            for pair in pairs:
                pair.negatives = pair.waiting[: rules.count]
        else:
            self._ask(cross_scores, pairs, counts)
        for pair in pairs:
            counts["pairs"] += 1
            counts["pseudo_positives"] += pair.is_pseudo
            counts["negatives"] += len(pair.negatives)
            counts["short"] += len(pair.negatives) < rules.count
            counts["empty"] += not pair.negatives
        return [self._line(pair) for pair in pairs], counts

    def _pairs(
        self,
        queries: Iterable[Query],
        rankings: Mapping[str, Ranking],
        pseudo: Mapping[str, list[str]],
    ) -> list[_MinedPair]:
        pairs = []
        for query in queries:
            scores = dict(rankings[query.query_id])
            positives = dict.fromkeys(self._judged.positives[query.query_id], False)
            positives |= dict.fromkeys(pseudo.get(query.query_id, ()), True)
            for doc_id, is_pseudo in positives.items():
                positive = self._read(doc_id).document
                pairs.append(_MinedPair(query, positive, scores.get(doc_id), is_pseudo))
        unknown = [pair for pair in pairs if pair.score is None]
        scores_of = self._source.score([(pair.query, pair.positive) for pair in unknown])
        for pair, score in zip(unknown, scores_of, strict=True):
            pair.score = score
        return pairs

    def _ask(
        self, cross_scores: CrossScores, pairs: Sequence[_MinedPair], counts: Counter[str]
    ) -> None:
        """Gives each pair its first candidates that the cross-encoder takes for irrelevant."""
        scores = cross_scores.of([(pair.query, pair.positive.doc_id) for pair in pairs])
        for pair, score in zip(pairs, scores, strict=True):
            pair.cross_score = score
        while True:
            asked: list[tuple[_MinedPair, tuple[str, float]]] = []
            for pair in pairs:
                missing = self._rules.count - len(pair.negatives)
                asked += [(pair, candidate) for candidate in pair.waiting[:missing]]
                pair.waiting = pair.waiting[missing:]
            if not asked:
                return
            scores = cross_scores.of([(pair.query, doc_id) for pair, (doc_id, _) in asked])
            for (pair, candidate), score in zip(asked, scores, strict=True):
                if self._rules.may_be_negative(score, pair.cross_score):
                    pair.negatives.append(candidate)
                    pair.cross_scores.append(score)
                else:
                    counts["cross_encoder"] += 1

    def _read_text(self, doc_id: str) -> ReadText:
        document = self._store.get(doc_id)
        if document is None:
            raise DataError("candidates", None, "must be documents of the dataset.", doc_id)
        return read_text(document)

    def _line(self, pair: _MinedPair) -> dict[str, Any]:
        line: dict[str, Any] = {
            "query": pair.query.text,
            "query_id": pair.query.query_id,
            "positive": self._written(pair.positive.doc_id),
            "negatives": [self._written(doc_id) for doc_id, _ in pair.negatives],
        }
        if pair.is_pseudo:
            line["pseudo"] = True
        if self._source.has_scores:
            scores = [score for _, score in pair.negatives]
            line["scores"] = {"positive": pair.score, "negatives": scores}
        if self._cross_encoder is not None:
            line["cross_scores"] = {"positive": pair.cross_score, "negatives": pair.cross_scores}
        return line

    def _written(self, doc_id: str) -> str | dict[str, str]:
        if self._documents == "ids":
            return doc_id
        document = self._read(doc_id).document
        return document_texts(document)
