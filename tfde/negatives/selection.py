"""Which candidates become negatives: what is none is left out, the rest in an order.

No negatives are known positives, their like, and what scores as high as they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfde.config.negatives import MiningRules
from tfde.data.ids import generator_of
from tfde.data.near_duplicates import Shingles, normal_words, resemblance, shingles
from tfde.negatives.candidate_sources import Ranking
from tfde.types import Document, Query

# In the order in which they are tried: a candidate is counted under the first that holds. The
# cross-encoder is asked last, and only about candidates that would be taken.
REASONS = {
    "positive": "known positives",
    "pseudo_positive": "taken for positives",
    "query": "the query itself",
    "rank": "ranked above the window",
    "same_text": "the text of a positive",
    "near_duplicate": "nearly the text of a positive",
    "margin": "score too near the positive's",
    "repeated": "the text of a better candidate",
    "cross_encoder": "relevant to the cross-encoder",
}


class ReadText(NamedTuple):
    """A document and its text as comparison sees it."""

    document: Document
    words: str
    shingles: Shingles


def read_text(document: Document) -> ReadText:
    """Returns the document ready for comparison; the title counts only where there is no text."""
    words = normal_words(document.text if document.text.strip() else document.title)
    return ReadText(document, " ".join(words), shingles(words))


def keep_negatives(
    ranking: Ranking,
    read: Callable[[str], ReadText],
    rules: MiningRules,
    *,
    ruled_out: Mapping[str, str],
    positive_score: float | None,
    removed: Counter[str],
) -> Ranking:
    """Returns the candidates that may be negatives of a pair, best first.

    Args:
        ranking: The candidates with their scores, best first.
        read: Gives a document by id.
        rules: What to leave out.
        ruled_out: What `like_positives` returned for the query.
        positive_score: The score of the pair's positive; `None` if unknown.
        removed: Counts what is left out, by `REASONS`.
    """
    highest = rules.highest_score(positive_score)
    seen: set[str] = set()
    kept = []
    for rank, (doc_id, score) in enumerate(ranking, start=1):
        if doc_id in ruled_out:
            reason = ruled_out[doc_id]
        elif rank < rules.min_rank:
            reason = "rank"
        elif score > highest:
            reason = "margin"
        elif (words := read(doc_id).words) in seen:
            reason = "repeated"
        else:
            seen.add(words)
            kept.append((doc_id, score))
            continue
        removed[reason] += 1
    return kept


def like_positives(
    ranking: Ranking,
    read: Callable[[str], ReadText],
    rules: MiningRules,
    positive_ids: Sequence[str],
    query: Query,
    *,
    first: int,
) -> dict[str, str]:
    """Returns the candidates that a query and its positives rule out, whatever the pair, and why.

    Args:
        ranking: The candidates with their scores, best first.
        read: Gives a document by id.
        rules: What to leave out.
        positive_ids: Every known positive of the query.
        query: The query; where queries are documents (Quora, ArguAna), it finds itself.
        first: Texts are looked at from this rank on.
    """
    known = frozenset(positive_ids)
    positives = [read(doc_id) for doc_id in positive_ids]
    texts = {positive.words for positive in positives}
    asked = " ".join(normal_words(query.text))
    found = {}
    for rank, (doc_id, _) in enumerate(ranking, start=1):
        if doc_id in known:
            found[doc_id] = "positive"
            continue
        if rank < first:
            continue
        candidate = read(doc_id)
        if candidate.words == asked or (rules.ignore_identical_ids and doc_id == query.query_id):
            found[doc_id] = "query"
        elif candidate.words in texts:
            found[doc_id] = "same_text"
        elif any(
            resemblance(candidate.shingles, positive.shingles) >= rules.nearly_equal
            for positive in positives
        ):
            found[doc_id] = "near_duplicate"
    return found


def choice_order(
    scores: Sequence[float], rules: MiningRules, *, query_id: str, doc_id: str
) -> list[int]:
    """Returns the positions of candidates in the order in which they are taken.

    Leaving a candidate out of the order is drawing without it, so that a later rule (the
    cross-encoder) only looks at as many as it must.

    Args:
        scores: Of the candidates, best first.
        rules: `choice`, `temperature`, `seed`.
        query_id: The pair's query.
        doc_id: The pair's positive.

    Source:
        Sampling without replacement by softmax: Kool et al. 2019 (Gumbel-top-k).
    """
    if rules.choice == "top":
        return list(range(len(scores)))
    generator = generator_of(rules.seed, "choice", query_id, doc_id)
    if rules.choice == "random":
        return generator.permutation(len(scores)).tolist()
    keys = np.asarray(scores, np.float64) / rules.temperature + generator.gumbel(size=len(scores))
    return np.argsort(-keys, kind="stable").tolist()
