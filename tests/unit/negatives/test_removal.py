"""Every rule of removal has a case of its own, counted under its name alone."""

from collections import Counter

import pytest

from tfde.config.negatives import MiningRules
from tfde.errors import ConfigError
from tfde.negatives.selection import REASONS, keep_negatives, like_positives, read_text
from tfde.types import Document, Query

TEXTS = {
    "good": "The tower was built in 1889 for the fair.",
    "same": "the TOWER was built in 1889, for the fair",
    "near": "The tower was built in 1889 for the world fair.",
    "other": "Its first lift had a great deal of trouble.",
    "twin": "its first lift had a great deal of trouble",
    "far": "Bread is baked from flour and water.",
    "also": "A second answer to the question.",
}

ASKED = Query("q", "which?")


def keep(ranking, *, known=("good",), score=10.0, query=ASKED, **options):
    def read(doc_id):
        return read_text(Document(doc_id, "a title", TEXTS[doc_id]))

    removed, rules = Counter(), MiningRules(**options)
    kept = keep_negatives(
        ranking,
        read,
        rules,
        ruled_out=like_positives(ranking, read, rules, known, query, first=rules.min_rank),
        positive_score=score,
        removed=removed,
    )
    assert set(removed) <= set(REASONS)
    return kept, dict(removed)


def test_nothing_to_remove():
    ranking = [("other", 9.0), ("far", 1.0)]
    assert keep(ranking) == (ranking, {})


def test_known_positives():
    ranking = [("good", 10.0), ("also", 9.5), ("far", 1.0)]
    assert keep(ranking, known=("good", "also")) == ([("far", 1.0)], {"positive": 2})


def test_the_text_of_a_positive_under_another_id():
    assert keep([("same", 10.0), ("far", 1.0)]) == ([("far", 1.0)], {"same_text": 1})


def test_the_query_itself_is_no_negative():
    ranking = [("far", 10.0), ("other", 1.0)]
    query = Query("q", "bread is baked from FLOUR and water")
    assert keep(ranking, query=query) == ([("other", 1.0)], {"query": 1})
    # Ids of two files may be equal by chance.
    query = Query("far", "which?")
    assert keep(ranking, query=query) == (ranking, {})
    assert keep(ranking, query=query, ignore_identical_ids=True) == (ranking[1:], {"query": 1})


def test_nearly_the_text_of_any_positive():
    # 8 words ("the" twice) and 8 neighbours; 9 and 9; shared 8 and 7: 15 of 19.
    ranking = [("near", 9.0), ("far", 1.0)]
    assert keep(ranking, known=("also", "good")) == ([("far", 1.0)], {"near_duplicate": 1})
    assert keep(ranking, nearly_equal=0.79) == (ranking, {})
    assert keep(ranking, nearly_equal=15 / 19) == ([("far", 1.0)], {"near_duplicate": 1})


def test_the_rank_window_counts_positives():
    ranking = [("good", 10.0), ("other", 9.0), ("far", 1.0)]
    assert keep(ranking, min_rank=2) == (ranking[1:], {"positive": 1})
    assert keep(ranking, min_rank=3) == (ranking[2:], {"positive": 1, "rank": 1})


def test_an_absolute_margin():
    ranking = [("other", 9.0), ("far", 8.0)]
    assert keep(ranking, score_margin=1) == (ranking, {})
    assert keep(ranking, score_margin=1.5) == ([("far", 8.0)], {"margin": 1})
    assert keep([("other", 10.5)], score_margin=0) == ([], {"margin": 1})
    assert keep([("other", 10.5)]) == ([("other", 10.5)], {})


def test_a_relative_margin():
    ranking = [("other", 9.6), ("far", 9.4)]
    assert keep(ranking, relative_margin=0.05) == ([("far", 9.4)], {"margin": 1})
    # Below a positive of -10 by 5 % of 10 is -10.5.
    ranking = [("other", -10.4), ("far", -10.6)]
    assert keep(ranking, score=-10.0, relative_margin=0.05) == ([("far", -10.6)], {"margin": 1})


def test_a_positive_without_score_lets_no_candidate_pass_a_margin():
    assert keep([("far", 1.0)], score=None, score_margin=0) == ([], {"margin": 1})
    assert keep([("far", 1.0)], score=None, relative_margin=0) == ([], {"margin": 1})
    assert keep([("far", 1.0)], score=None) == ([("far", 1.0)], {})


def test_one_of_equal_candidates():
    ranking = [("other", 9.0), ("twin", 9.0), ("far", 1.0)]
    assert keep(ranking) == ([ranking[0], ranking[2]], {"repeated": 1})


def test_each_candidate_counts_once_under_the_first_reason():
    ranking = [("good", 20.0), ("same", 20.0), ("near", 20.0), ("other", 20.0), ("twin", 1.0)]
    assert keep(ranking, score_margin=0) == (
        [("twin", 1.0)],
        {"positive": 1, "same_text": 1, "near_duplicate": 1, "margin": 1},
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, r"`count` must be at least 1\. Received: 0"),
        ({"min_rank": 0}, r"`min_rank` must be at least 1\. Received: 0"),
        ({"min_rank": 5, "max_rank": 4}, r"`max_rank` must be at least `min_rank`, 5\. Rec.*: 4"),
        ({"nearly_equal": 0}, r"`nearly_equal` must be in \(0, 1\]\. Received: 0"),
        ({"score_margin": -1}, r"`score_margin` must be at least 0\. Received: -1"),
        ({"relative_margin": 1}, r"`relative_margin` must be in \[0, 1\)\. Received: 1"),
        ({"cross_margin": -0.5}, r"`cross_margin` must be at least 0\. Received: -0\.5"),
        ({"choice": "best"}, r"`choice` must be one of top, random, sampled\. Received: 'best'"),
        ({"temperature": 0}, r"`temperature` must be above 0\. Received: 0"),
        ({"seed": -1}, r"`seed` must be at least 0\. Received: -1"),
    ],
)
def test_impossible_rules(options, message):
    with pytest.raises(ConfigError, match=message):
        MiningRules(**options)


def test_the_title_counts_where_there_is_no_text():
    one, two = (read_text(Document("d", title, " ")) for title in ("Red River", "Bread"))
    assert one.words == "red river"
    assert one.words != two.words
    assert read_text(Document("d", "Title", "text")).words == "text"
