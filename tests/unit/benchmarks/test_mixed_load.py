"""The mixed load runs, at a tiny size; and its checks find what is wrong."""

import numpy as np
import pytest
import tiny
from benchmark_script import BENCHMARKS, run_benchmark


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    tiny.dual_encoder().save_to_preset(folder / "model")
    tiny.write_dataset(folder / "data", documents=200)
    return run_benchmark(
        "mixed_load.py", "--model", folder / "model", "--dataset", folder / "data",
        "--documents", 160, "--queries", 20, "--minutes", 0.1, "--clients", 2, "--share", 0.2,
        "--changes_per_s", 20, "--compact_s", 2, "--swap_s", 1, "--sample_s", 0.5,
        "--warmup_s", 0.5, "--capacity_s", 1.5, "--timeout_s", 60,
        "--overload", "--overload_s", 1, "--after_s", 0.5,
    )  # fmt: skip


@pytest.mark.slow
def test_a_mixed_load_is_answered_rightly(result):
    mixed = result["mixed_load"]
    assert set(mixed["kinds"]) == {"retriever", "query_encoder", "search", "embeddings"}
    assert mixed["requests"] == sum(some["requests"] for some in mixed["kinds"].values()) > 50
    assert (mixed["failed"], mixed["wrong"], mixed["capacity"]["wrong"]) == (0, 0, 0)
    assert mixed["swaps"]["made"] >= 1
    assert mixed["swaps"]["failed"] == []
    assert mixed["versions_that_answered"] >= 2
    changes = mixed["changes"]
    assert set(changes["calls"]) == {"OK"}
    assert set(changes["documents"]) >= {"add", "replace", "delete"}
    assert changes["documents"]["found by own text"] > 0
    assert mixed["index"]["generation"] >= 2
    for use in mixed["memory"].values():
        assert use["samples"] > 3
        assert use["first_third_mib"] > 100


@pytest.mark.slow
def test_an_overload_is_refused_and_over_afterwards(result):
    overload = result["overload"]
    assert overload["rate_per_s"] == pytest.approx(
        5 * overload["capacity"]["answered_per_s"], rel=1e-3
    )
    assert overload["wrong"] == 0
    assert overload["codes"]["OK"]["requests"] > 0
    assert overload["bound_ms"] > 0
    assert set(overload["afterwards"]["codes"]) == {"OK"}


SCORES = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]], np.float32)


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from answer_check import AnswerCheck, Found

    times = iter(range(1000))
    made = AnswerCheck(SCORES, {0: "a", 1: "b", 2: "c"}, clock=lambda: next(times))

    def fault(*results, asked_at=None):
        asked_at = made.clock() if asked_at is None else asked_at
        found = [
            Found(doc_id, text, score[0] if score else SCORES[0, text])
            for doc_id, text, *score in results
        ]
        return made.fault(0, 2, found, asked_at=asked_at)

    made.told = fault
    return made


def test_wrong_answers_are_told(check):
    assert check.told(("a", 0), ("b", 1)) == ""
    assert check.told(("a", 0), ("c", 2)) == "b with score 0.800000 is missing"
    assert check.told(("a", 0)).startswith("1 results")
    assert check.told(("a", 0), ("a", 0)).startswith("2 results, some perhaps twice")
    assert check.told(("b", 1), ("a", 0)) == "a stands below a lower score"
    assert check.told(("a", 0, 0.91), ("b", 1)) == "a has score 0.910000, expected 0.900000"
    assert "shows a text that was deleted" in check.told(("a", 0), ("c", 1))
    assert "shows a text that was deleted" in check.told(("a", 0), ("d", 3))


def test_changes_are_certain_once_they_are_acknowledged(check):
    changes = {"d": 3, "a": 4, "b": None}  # a document more, a replaced and a deleted one
    before = check.clock()
    check.sent(changes)
    # Under way, both states may be seen, but no third.
    assert check.told(("a", 0), ("b", 1)) == ""
    assert check.told(("c", 2), ("d", 3)) == ""
    assert check.told(("c", 2), ("a", 4)) == ""
    assert check.told(("c", 2), ("b", 3)) == "b never had the text that it shows"
    check.acknowledged(changes)
    assert check.told(("a", 0), ("c", 2), asked_at=before) == ""  # asked before
    assert "a shows a text that was deleted" in check.told(("a", 0), ("c", 2))
    assert "b shows a text that was deleted" in check.told(("b", 1), ("c", 2))
    assert check.told(("c", 2), ("a", 4)) == "d with score 0.600000 is missing"
    assert check.told(("c", 2), ("d", 3)) == ""
    assert check.texts == {"c": 2, "d": 3, "a": 4}
