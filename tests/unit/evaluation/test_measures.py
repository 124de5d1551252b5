import math

import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.evaluation.measures import depth, evaluate, parse_measures, per_query

ALL = ["P@1", "RR", "RR@10", "R@5", "nDCG@10", "Success@2", "AP"]


def test_hand_made_values():
    qrels = {"q": {"a": 2, "b": 1, "c": 0}}
    run = {"q": {"x": 4.0, "a": 3.0, "c": 2.0, "b": 1.0}}
    dcg = 2 / math.log2(3) + 1 / math.log2(5)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    assert evaluate(run, qrels, [*ALL, "R@2", "Success@1", "RR@1"]) == pytest.approx(
        {
            "P@1": 0,
            "RR": 1 / 2,
            "RR@10": 1 / 2,
            "R@5": 1,
            "nDCG@10": dcg / ideal,
            "Success@2": 1,
            "AP": (1 / 2 + 2 / 4) / 2,
            "R@2": 1 / 2,
            "Success@1": 0,
            "RR@1": 0,
        }
    )


@pytest.mark.parametrize(("relevant", "rank"), [("c", 1), ("b", 2), ("a", 3)])
def test_ties_fall_to_the_greater_id_in_every_measure(relevant, rank):
    qrels = {"q": {relevant: 1}}
    for order in ("abc", "cba", "bca"):
        values = evaluate(
            {"q": dict.fromkeys(order, 1.0)},
            qrels,
            ["P@1", "RR", "RR@10", "RR@2", "RR@1", "R@2", "Success@1", "nDCG@10"],
        )
        assert values == pytest.approx(
            {
                "P@1": int(rank == 1),
                "RR": 1 / rank,
                "RR@10": 1 / rank,
                "RR@2": 1 / rank if rank <= 2 else 0,
                "RR@1": int(rank == 1),
                "R@2": int(rank <= 2),
                "Success@1": int(rank == 1),
                "nDCG@10": 1 / math.log2(rank + 1),
            }
        )


def test_scores_that_float32_cannot_tell_apart_are_ties():
    run = {"q": {"a": 1.0 + 1e-9, "b": 1.0}}
    values = evaluate(run, {"q": {"a": 1}}, ["RR", "RR@10", "RR@1", "P@1"])
    assert values == {"RR": 0.5, "RR@10": 0.5, "RR@1": 0.0, "P@1": 0.0}


def test_all_judged_queries_count_and_no_other():
    qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"c": 1}, "q4": {"d": 0}}
    run = {"q1": {"a": 1.0}, "q2": {}, "other": {"z": 1.0}}
    for measure in ALL:
        assert evaluate(run, qrels, [measure]) == {measure: 1 / 4}
    rows = per_query(run, qrels, ["RR", "RR@10"])
    assert list(rows) == ["q1", "q2", "q3", "q4"]
    assert rows["q1"] == {"RR": 1.0, "RR@10": 1.0}
    assert rows["q2"] == rows["q3"] == rows["q4"] == {"RR": 0.0, "RR@10": 0.0}
    assert evaluate({}, qrels, ALL) == dict.fromkeys(ALL, 0.0)


def test_identical_ids_are_left_out_when_asked():
    run = {"a": {"a": 2.0, "b": 1.0}, "c": {"c": 1.0}}
    qrels = {"a": {"b": 1}, "c": {"b": 1}}
    assert evaluate(run, qrels, ["RR", "RR@10"]) == {"RR": 0.25, "RR@10": 0.25}
    ignoring = evaluate(run, qrels, ["RR", "RR@10"], ignore_identical_ids=True)
    assert ignoring == {"RR": 0.5, "RR@10": 0.5}
    assert run["a"] == {"a": 2.0, "b": 1.0}  # the caller's run stays as it was


def test_an_oracle_scores_one_and_constant_scores_chance():
    generator = np.random.default_rng(0)
    doc_ids = [f"d{i:03d}" for i in range(100)]
    qrels = {f"q{i}": {doc_ids[generator.integers(100)]: 1} for i in range(2000)}
    oracle = {query_id: {**dict.fromkeys(doc_ids, 0.0), **row} for query_id, row in qrels.items()}
    measures = ["P@1", "RR", "RR@10", "R@10", "nDCG@10", "Success@10"]
    assert evaluate(oracle, qrels, measures) == pytest.approx(dict.fromkeys(measures, 1.0))
    constant = {query_id: dict.fromkeys(doc_ids, 0.7) for query_id in qrels}
    harmonic = sum(1 / rank for rank in range(1, 101)) / 100
    values = evaluate(constant, qrels, measures)
    assert values["P@1"] == pytest.approx(0.01, abs=0.007)
    assert values["RR"] == pytest.approx(harmonic, abs=0.012)
    assert values["R@10"] == values["Success@10"] == pytest.approx(0.1, abs=0.025)


def test_relevance_levels_and_names_that_mean_the_same():
    qrels = {"q": {"a": 1, "b": 2}}
    run = {"q": {"a": 2.0, "b": 1.0}}
    values = evaluate(run, qrels, ["RR(rel=2)", "RR(rel=2)@10", "MRR@10", "nDCG", "NDCG@10", "MAP"])
    assert values["RR(rel=2)"] == values["RR(rel=2)@10"] == 0.5
    assert values["MRR@10"] == values["MAP"] == 1
    assert values["nDCG"] == values["NDCG@10"]


def test_depth_is_the_greatest_cutoff():
    assert depth(["P@1", "RR", "R@100", "nDCG@10"]) == 100
    assert depth(["RR", "AP"]) == 0


@pytest.mark.parametrize(
    "name",
    ["foo@1", "P", "P@0", "P@x", "ERR@10", "NumQ", "P@1;P@2", "", "R@-1", "a b", "RR@(", "_"],
)
def test_unknown_measures_are_refused_with_examples(name):
    with pytest.raises(ConfigError, match=r"unknown measure; try P@1, RR, RR@10.* Received: "):
        parse_measures([name])


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="`measures` must name at least one"):
        evaluate({}, {"q": {"a": 1}}, [])
    with pytest.raises(ConfigError, match="`qrels` must judge at least one query"):
        evaluate({}, {}, ["RR"])
    with pytest.raises(ConfigError, match=r"scores must be finite\. Received: query 'q'"):
        evaluate({"q": {"a": float("nan")}}, {"q": {"a": 1}}, ["RR"])


def test_numbers_are_python_s_or_numpy_s():
    run = {"q": {"a": np.float32(0.1), "b": np.int64(1), "c": 0.5}}
    qrels = {"q": {"a": np.int64(1), "b": 1.0, "c": np.int32(0)}}
    plain = evaluate({"q": {"a": 0.1, "b": 1.0, "c": 0.5}}, {"q": {"a": 1, "b": 1, "c": 0}}, ALL)
    assert evaluate(run, qrels, ALL) == plain


@pytest.mark.parametrize(
    ("run", "qrels", "words"),
    [
        ({"q": {"a": 1.0}}, {1: {"a": 1}}, "`qrels` must be of ids that are texts. Received: 1"),
        (
            {"q": {7: 1.0}},
            {"q": {"a": 1}},
            "`run` must be of ids that are texts. Received: {'q': 7",
        ),
        ({"q": {"a": "1.0"}}, {"q": {"a": 1}}, "scores that are numbers. Received: '1.0'"),
        ({"q": {"a": 1.0}}, {"q": {"a": 0.5}}, "whole numbers. Received: 0.5"),
        ({"q": {"a": 1.0}}, {"q": {"a": math.inf}}, "whole numbers. Received: inf"),
        ({"q": ["a"]}, {"q": {"a": 1}}, "`run` must be a mapping of query ids to mappings"),
        ({"q": {"a": 1.0}}, {"q": {"a"}}, "`qrels` must be a mapping of query ids to mappings"),
    ],
)
def test_what_is_no_run_and_no_judgement_is_named(run, qrels, words):
    with pytest.raises(ConfigError) as told:
        evaluate(run, qrels)
    assert words in str(told.value)


def test_measures_that_can_only_be_0_are_warned_of(caplog):
    assert evaluate({"1": {"a": 1.0}}, {"q1": {"a": 1}}, ["RR"]) == {"RR": 0}
    assert "no query of the run is judged: it has '1', the judgements 'q1'" in caplog.text
    caplog.clear()
    assert evaluate({"q": {"a": 1.0}}, {"q": {"a": 0}}, ["RR"]) == {"RR": 0}
    assert "no document is relevant (1 or more)" in caplog.text
    caplog.clear()
    assert evaluate({"q": {"XXa": 1.0}}, {"q": {"a": 1}}, ["RR"]) == {"RR": 0}
    assert "no document of the run is judged: it has 'XXa'" in caplog.text
    caplog.clear()
    evaluate({"q": {"a": 1.0, "b": 2.0}}, {"q": {"a": 1}, "other": {"a": 1}}, ["RR"])
    assert not caplog.text


@pytest.mark.parametrize("grade", [-1, -2, -1000])
def test_a_query_of_junk_alone_counts_0(grade):
    """Grades below 0 are no relevance, as in TREC's Web tracks; trec_eval's own code dies there."""
    run = {"q1": {"a": 1.0}, "q2": {"a": 1.0}}
    qrels = {"q1": {"a": 1}, "q2": {"a": grade, "b": grade}}
    names = ["P@1", "RR", "nDCG@10", "nDCG", "AP", "R@10", "Rprec"]
    random = np.random.default_rng(1)
    for _ in range(50):  # between others, whose memory it read
        grades = random.integers(0, 4, 12).tolist()
        other = {f"d{place}": grade for place, grade in enumerate(grades)}
        evaluate(
            {"q": dict(zip(other, random.random(12).tolist(), strict=True))}, {"q": other}, names
        )
        assert evaluate(run, qrels, names) == dict.fromkeys(names, 0.5)


def test_grades_beyond_all_scales_are_refused():
    with pytest.raises(ConfigError, match=r"`qrels` must be from -1000000 to 1000000"):
        evaluate({"q": {"a": 1.0}}, {"q": {"a": 2**32 + 1}}, ["P@1"])
