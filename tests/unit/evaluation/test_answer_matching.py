import numpy as np
import pytest
import pytrec_eval

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Answers
from tfde.errors import ConfigError
from tfde.evaluation.answer_matching import (
    AnswerTexts,
    answer_accuracy,
    answer_ranks,
    holds_answer,
)
from tfde.evaluation.measures import evaluate, mean_values, per_query
from tfde.types import Document, Query

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


def test_a_measure_of_each_query_agrees_with_trec_eval_on_judgements_of_answers():
    # trec_eval's Success@k of "the document holds an answer", asked through pytrec_eval.
    words = ["paris", "rome", "milan", "oslo"]
    corpus = [Document(f"d{n}", "", f"{words[n % 3]} {n}") for n in range(30)]
    answers = {f"q{n}": [words[n % 4].title()] for n in range(12)}
    rng = np.random.default_rng(0)
    run = {
        query: {f"d{n}": float(rng.integers(9)) for n in rng.permutation(30)[:6]}
        for query in answers
    } | {"q11": {}}
    holds = {
        query: {d.doc_id: int(holds_answer(d.text, texts)) for d in corpus}
        for query, texts in answers.items()
    }
    qrels = {query: {"d0": 1} for query in answers}
    wanted = AnswerTexts(answers, lambda: corpus)
    rows = per_query(run, qrels, ["Answer@1", "P@1", "Answer@5"], answers=wanted)
    evaluator = pytrec_eval.RelevanceEvaluator(holds, {"success.1,5"})
    expected = evaluator.evaluate({query: found or {"none": 0.0} for query, found in run.items()})
    for query, row in rows.items():
        assert list(row) == ["Answer@1", "P@1", "Answer@5"]
        assert (row["Answer@1"], row["Answer@5"]) == (
            expected[query]["success_1"],
            expected[query]["success_5"],
        )
    assert 0 < mean_values(rows)["Answer@5"] < 1
    assert mean_values(rows)["Answer@5"] == answer_accuracy(run, answers, corpus)["Answer@5"]


def test_a_measure_without_answers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`measures` must be .* Received: 'Answer@5'"):
        evaluate({"q": {"a": 1.0}}, {"q": {"a": 1}}, ["Answer@5"])
    for odd in ("Answer", "Answer@0", "Answer@x", "answer@5"):
        with pytest.raises(ConfigError, match="unknown measure"):
            evaluate({"q": {"a": 1.0}}, {"q": {"a": 1}}, [odd])
    queries = [Query("q1", "one?"), Query("q2", "two?")]
    records = [*CORPUS, *queries, Answers("q1", ("Paris",))]
    write_dataset(tmp_path / "data", records)
    message = r"needs answers to every query .* Received: 1 of 2 without any, such as 'q2'"
    with pytest.raises(ConfigError, match=message):
        AnswerTexts.of(DatasetDirectory(tmp_path / "data"), ["q1", "q2"])
