"""The day of operations runs, at a tiny size; and its checks find what is wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tiny
from benchmark_script import BENCHMARKS

from tfde.types import Document

DOCUMENTS = [
    Document(
        f"t{n}", f"Title {n}", f"Sentence {n} begins. " + "More of it. " * 40 + f"And ends {n}."
    )
    for n in range(5)
]
SCORES = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]], np.float32)
START = np.array([0, 1, 2, -1], np.int32)  # d0 to d2 are there, d3 is not


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import day_check

    return day_check


def hit(doc_id, text, /, **wrong):
    """The hit of an id under which a text stands."""
    document = DOCUMENTS[text]
    snippet = f"… {document.text[22:200]} …"
    right = {"doc_id": doc_id, "title": document.title, "text": document.text, "snippet": snippet}
    return right | {"score": float(SCORES[0, text])} | wrong


@pytest.mark.parametrize(
    ("hits", "fault"),
    [
        ([hit("d0", 0), hit("d1", 1)], ""),
        ([hit("d0", 0, score=0.90009), hit("d1", 1)], ""),
        ([{"doc_id": "d0", "title": "Title 0", "score": 0.9}, hit("d1", 1)], ""),
        ([hit("d0", 0)], "1 hits, some perhaps twice, in place of 2"),
        ([], "0 hits, some perhaps twice, in place of 2"),
        ([hit("d0", 0), hit("d0", 0)], "2 hits, some perhaps twice, in place of 2"),
        ([hit("d0", 0), hit("d3", 3)], "d3 is not there"),
        ([hit("d0", 0), hit("other", 1)], "other is not there"),
        ([hit("d0", 0), hit("d4", 1)], "d4 is not there"),
        ([hit("d0", 0, title="Title 1"), hit("d1", 1)], "d0 has another title"),
        ([hit("d0", 0, title=""), hit("d1", 1)], "d0 has another title"),
        ([hit("d0", 0, text=""), hit("d1", 1)], "d0 has another text"),
        ([hit("d0", 0), hit("d1", 1, text=DOCUMENTS[2].text)], "d1 has another text"),
        ([hit("d0", 0, snippet=""), hit("d1", 1)], "d0 has a snippet of another text"),
        ([hit("d0", 0, snippet="Sentence 1"), hit("d1", 1)], "d0 has a snippet of another text"),
        ([hit("d0", 0, snippet=DOCUMENTS[0].text), hit("d1", 1)], "d0 has a snippet of anoth"),
        ([hit("d0", 0, score=0.8), hit("d1", 1)], "d0 has score 0.800000, not 0.900000"),
        ([hit("d0", 0), hit("d2", 2)], "rank 2 has score 0.700000, not 0.800000"),
        ([hit("d1", 1), hit("d0", 0)], "rank 1 has score 0.800000, not 0.900000"),
        ([hit("d0", 0), hit("d1", 4)], "d1 has another title"),  # another state's, whole
    ],
)
def test_what_is_wrong_in_an_answer_is_told(check, hits, fault):
    truth = check.Truth(DOCUMENTS, SCORES)
    found = check.hits_fault(truth, START, 0, 2, hits)
    assert found.startswith(fault) if fault else found == ""


def test_snippets_are_cut_from_the_text(check):
    assert check._is_of("… of it. And … then", "more of it. And so on, then")
    assert check._is_of("… a … b", "… a … b")  # dots of the text's own
    assert not check._is_of("… of it. Or …", "more of it. And so on")
    assert check._is_of("", " ")
    assert not check._is_of(" …", "text")


@pytest.fixture
def history(check):
    made = check.IndexHistory(check.Truth(DOCUMENTS, SCORES), START)

    def told(*hits, version, floor=None):
        floor = made.floor() if floor is None else floor
        return made.fault(0, 2, hits, version=version, floor=floor)

    made.told = told
    return made


BEFORE = hit("d0", 0), hit("d1", 1)
AFTER = hit("d2", 1), hit("d3", 4)  # d3 is new, d2 has another text, d0 and d1 are deleted


def test_an_answer_is_of_one_state_of_the_index(history):
    floor = history.floor()
    assert history.told(*BEFORE, version="1.0") == ""
    history.sent({3: 4, 2: 1})
    # On their way, either state may be seen, whole; then none before what was seen.
    assert history.told(*BEFORE, version="1.0") == ""
    assert history.told(*BEFORE, version="1.1") == "change 1 was never the last"
    assert "rank 2" in history.told(*BEFORE[:1], hit("d3", 4), version="1.2")
    assert history.told(hit("d0", 0), hit("d2", 1), version="1.2") == ""
    assert history.told(*BEFORE, version="1.0", floor=floor) == ""  # asked before
    assert history.told(*BEFORE, version="1.0").startswith("change 0 is the last, and 2 was known")
    assert history.settled(2) == ""
    history.sent({0: -1, 1: -1})
    assert history.settled(4) == ""
    assert history.told(*AFTER, version="2.4") == ""
    assert history.told(*BEFORE, version="2.4") == "after change 4: d0 is not there"
    assert (
        history.told(AFTER[0], hit("d3", 3), version="2.4")
        == "after change 4: d3 has another title"
    )
    assert history.told(*AFTER, version="2.5") == "change 5 was never the last"


def test_what_was_acknowledged_or_seen_before_a_kill_is_there_after(history):
    history.sent({3: 4})
    assert history.settled(1) == ""
    history.sent({0: 4, 1: 4})
    assert history.settled(0) == "change 0 is the last, in place of 1 or 3"
    history.sent({0: 4, 1: 4})
    assert history.settled(1) == ""  # it was on its way, and is lost
    assert history.told(*BEFORE, version="1.3") == "change 3 was never the last"
    history.sent({0: -1})
    assert history.told(hit("d1", 1), hit("d2", 2), version="1.2") == ""
    assert history.settled(1) == "change 2 was seen, and is lost"


def test_an_answer_is_of_one_version_that_might_answer(check):
    history = check.VersionHistory(check.Truth(DOCUMENTS, SCORES), 1, START)
    history.states[2] = START[::-1].copy()

    def told(*hits, asked_at, now, version=None):
        return history.fault(0, 2, hits, asked_at=asked_at, now=now, version=version)

    first, second = BEFORE, (hit("d3", 0), hit("d2", 1))
    assert told(*first, asked_at=1, now=2, version=1) == ""
    assert told(*second, asked_at=1, now=2) == "in version 1: d3 is not there"
    assert told(*second, asked_at=1, now=2, version=2) == "version 2 answers, in place of [1]"
    history.begins(2, 10)
    for version in (2, None):
        assert told(*second, asked_at=9, now=11, version=version) == ""
    assert told(*first, asked_at=12, now=13) == ""
    assert told(*first, asked_at=12, now=13, version=2).startswith("in version 2: d0 is not there")
    mixed = told(first[0], second[1], asked_at=12, now=13)
    assert mixed.startswith("in version 1: d2 has another title; in version 2: d0 is not there")
    history.alone(2, 20)
    assert told(*first, asked_at=19, now=21, version=1) == ""  # asked before
    assert told(*first, asked_at=21, now=22, version=1) == "version 1 answers, in place of [2]"
    assert told(*second, asked_at=21, now=22, version=2) == ""
    history.begins(1, 30)  # rolled back
    assert told(*first, asked_at=31, now=32, version=1) == ""


def test_a_row_counts_what_was_asked_meanwhile(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from day_load import Answer
    from operations_day import Event, rows, table

    answers = [
        Answer("k", 0.0, 1.0, "OK", ""),
        Answer("k", 4.0, 5.5, "WRONG ANSWER", "x"),
        Answer("k", 5.5, 5.6, "SERVER DOWN", ""),
        Answer("k", 6.0, 8.0, "UNAVAILABLE", "y"),
        Answer("k", 7.0, 7.5, "OK", ""),
    ]
    events = [Event("kill", 5.0, 6.5, ""), Event("add", 5.8, 5.9, "HTTP 500: no")]
    found = {each["event"]: each for each in rows(events, answers)}
    assert list(found) == ["kill", "add", "none of these", "all"]
    counts = {
        name: tuple(each[n] for n in ("times", "requests", "server_down", "failed", "wrong"))
        for name, each in found.items()
    }
    assert counts == {
        "kill": (1, 3, 1, 1, 1),
        "add": (1, 0, 0, 1, 0),
        "none of these": (0, 2, 0, 0, 0),
        "all": (2, 5, 1, 2, 1),
    }
    assert found["none of these"]["p50_ms"] == 500.0
    assert found["kill"]["seconds"] == [1.5, 1.5]
    assert (
        table(list(found.values())).splitlines()[2]
        == "| kill | 1 | 1.5 / 1.5 | 3 |  |  | 1 | 1 | 1 |"
    )


def test_a_day_in_a_minute(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    tiny.write_dataset(tmp_path / "data")
    command = [
        sys.executable, BENCHMARKS / "operations_day.py", "--model", tmp_path / "model",
        "--dataset", tmp_path / "data", "--documents", 160, "--queries", 20, "--seconds", 5,
        "--operations", "install_index", "kill_index", "rollback", "--share", 0.2, "--clients", 2,
        "--changes_per_s", 10, "--compact_s", 2, "--sample_s", 0.5, "--warmup_s", 0.5,
        "--capacity_s", 1.5, "--timeout_s", 60, "--output", tmp_path / "day.json",
    ]  # fmt: skip
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "day.json").read_text())
    assert result["faults"] == []
    found = {each["event"]: each for each in result["rows"]}
    assert {f"documents {what}" for what in ("added", "replaced", "deleted")} < set(found)
    assert {"compaction", "index exported and installed"} < set(found)
    assert (found["all"]["failed"], found["all"]["wrong"]) == (0, 0)
    assert found["kill of the index's server"]["server_down"] > 0
    assert found["all"]["requests"] > 100
    for first, last in result["mebibytes"].values():
        assert min(first, last) > 100
    assert "| rollback | 1 | " in done.stdout
