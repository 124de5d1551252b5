import pytest

from tfde.errors import ConfigError
from tfde.evaluation.answer_matching import answer_accuracy, answer_ranks
from tfde.types import Document

CORPUS = [
    Document("a", "Paris", "The capital of France"),
    Document("b", "", "Paris is large"),
    Document("c", "", "Rome is old"),
    Document("d", "", "nothing"),
]
ANSWERS = {"q1": ["paris"], "q2": ["Milan", "Rome"], "q3": ["paris"]}
RUN = {"q1": {"a": 3.0, "d": 2.0, "b": 1.0}, "q2": {"c": 9.0, "d": 1.0}, "q4": {"nowhere": 1.0}}


def test_ranks_by_hand():
    # q1: its title is no text, so rank 3; q2: the second answer at rank 1; q3: no results; q4: no
    # answers, so neither its run nor its unknown document counts.
    assert answer_ranks(RUN, ANSWERS, CORPUS, depth=10) == {"q1": 3, "q2": 1, "q3": None}
    assert answer_ranks(RUN, ANSWERS, CORPUS, depth=2) == {"q1": None, "q2": 1, "q3": None}


def test_ranks_do_not_depend_on_the_order_of_the_corpus():
    run = {"q1": {"b": 1.0, "d": 2.0, "a": 3.0, "c": 0.0}}
    answers = {"q1": ["is"]}
    for corpus in (CORPUS, CORPUS[::-1]):
        assert answer_ranks(run, answers, corpus, depth=4) == {"q1": 3}


def test_ties_are_broken_as_trec_eval_does():
    run = {"q1": {"b": 1.0, "d": 1.0}}  # by id, descending: d, b
    assert answer_ranks(run, {"q1": ["paris"]}, CORPUS, depth=9) == {"q1": 2}


def test_accuracy_by_hand():
    found = answer_accuracy(RUN, ANSWERS, CORPUS, cutoffs=(1, 2, 3))
    assert found == {"Answer@1": 1 / 3, "Answer@2": 1 / 3, "Answer@3": 2 / 3}


def test_an_oracle_and_an_empty_run():
    best = {"q1": {"b": 1.0}, "q2": {"c": 1.0}, "q3": {"b": 1.0}}
    assert set(answer_accuracy(best, ANSWERS, CORPUS).values()) == {1.0}
    assert set(answer_accuracy({}, ANSWERS, CORPUS).values()) == {0.0}


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match=r"`answers` must hold at least one query\. Received: no"):
        answer_accuracy(RUN, {}, CORPUS)
    with pytest.raises(ConfigError, match=r"`cutoffs` must be at least 1\. Received: \(5, 0\)"):
        answer_accuracy(RUN, ANSWERS, CORPUS, cutoffs=(5, 0))
    with pytest.raises(ConfigError, match=r"`run` must name documents of the corpus\. Rec.*'x'"):
        answer_accuracy({"q1": {"x": 1.0}}, ANSWERS, CORPUS)
