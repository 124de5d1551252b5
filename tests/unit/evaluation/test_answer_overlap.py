"""Exact match and F1 by hand, after the rule of SQuAD 1.1's script.

They were compared once with torchmetrics 1.9 on 3,143 answers of SQuAD's dev file: all equal, but
where nothing is left of both texts once normalized, whose F1 version 1.1's rule calls 0.
"""

import pytest

from tfde.errors import ConfigError
from tfde.evaluation.answer_overlap import (
    answer_overlap,
    exact_match,
    normalized_answer,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Norman\tConquest!", "norman conquest"),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),  # articles are whole words
        ("U.S.", "us"),
        ("rock-and-roll", "rockandroll"),
        ("Éa the", "éa"),
        ("“the”", "“ ”"),  # punctuation beyond ASCII stays
        ("The", ""),
        ("", ""),
    ],
)
def test_normalized(text, normalized):
    assert normalized_answer(text) == normalized


@pytest.mark.parametrize(
    ("text", "answers", "match", "f1"),
    [
        ("the Normans", ["Normans"], 1.0, 1.0),
        ("in France", ["France"], 0.0, 2 / 3),  # precision 1/2, recall 1
        ("France", ["in 911", "north of France"], 0.0, 1 / 2),  # the best answer counts
        ("to be or to be", ["to be"], 0.0, 4 / 7),  # a word counts as often as both have it
        ("Rome", ["France"], 0.0, 0.0),
        ("the", ["a"], 1.0, 0.0),  # nothing is left of either
        ("", ["France"], 0.0, 0.0),
        ("France", [], 0.0, 0.0),
    ],
)
def test_one_answer(text, answers, match, f1):
    assert exact_match(text, answers) == match
    assert token_f1(text, answers) == pytest.approx(f1)


def test_means_count_questions_that_got_no_answer():
    answers = {"q1": ["France"], "q2": ["911"], "q3": ["10"]}
    found = answer_overlap({"q1": "in France", "q2": "911", "other": "10"}, answers)
    assert found == pytest.approx({"EM": 1 / 3, "F1": (2 / 3 + 1) / 3})


def test_no_answers():
    with pytest.raises(ConfigError, match="`answers` must hold at least one question"):
        answer_overlap({}, {})
