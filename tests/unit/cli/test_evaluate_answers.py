"""`tfde evaluate --answers`, on run files."""

import json

import pytest

from tfde.cli.main import main
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Answers, Judgement
from tfde.types import Document, Query

CORPUS = [Document("d1", "", "Paris is large"), Document("d2", "", "Rome is old")]
QUESTIONS = [Query("q1", "Which is large?"), Query("q2", "Which is old?"), Query("q3", "None?")]
ANSWERS = [Answers("q1", ("Paris",)), Answers("q2", ("Rome",))]
JUDGEMENTS = [Judgement("test", q, "d1", 1) for q in ("q1", "q2", "q3")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [*CORPUS, *QUESTIONS, *ANSWERS]
    write_dataset("judged", [*records, *JUDGEMENTS])
    write_dataset("answered", records)
    write_dataset("all", [*records, Answers("q3", ("Oslo",)), *JUDGEMENTS])
    write_dataset("neither", [*CORPUS, *QUESTIONS, *JUDGEMENTS])
    rows = ["q1 Q0 d1 1 2.0 x", "q1 Q0 d2 2 1.0 x", "q2 Q0 d1 1 2.0 x", "q2 Q0 d2 2 1.0 x"]
    (tmp_path / "run.trec").write_text("\n".join(rows) + "\n")


def evaluate(dataset, *arguments):
    return main(["evaluate", "--dataset", dataset, "--run_file", "run.trec", *arguments])


def test_beside_measures(folder, capsys):
    assert evaluate("judged", "--answers", "--measures", "P@1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["queries"], result["queries_with_answers"]) == (3, 2)
    (row,) = result["rows"]
    assert row["measures"] == {
        "P@1": pytest.approx(2 / 3),
        "Answer@1": 0.5,
        "Answer@5": 1.0,
        "Answer@20": 1.0,
        "Answer@100": 1.0,
    }


def test_a_dataset_without_judgements(folder, capsys):
    assert evaluate("answered", "--answers") == 0
    header, _, row = capsys.readouterr().out.splitlines()[2:5]
    assert header.split()[3:-3:2] == ["Answer@1", "Answer@5", "Answer@20", "Answer@100"]
    assert row.split()[3:-3:2] == ["0.5000", "1.0000", "1.0000", "1.0000"]


@pytest.mark.parametrize("dataset", ["answered", "all"])
def test_a_cutoff_of_ones_own(folder, capsys, dataset):
    assert evaluate(dataset, "--answers", "--measures", "Answer@2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    names = [f"Answer@{k}" for k in (1, 2, 5, 20, 100)]
    assert sorted(row["measures"]) == sorted(names)
    assert row["measures"]["Answer@2"] == row["measures"]["Answer@100"] > 0.5


def test_among_measures_where_every_question_has_answers(folder, capsys):
    assert evaluate("all", "--measures", "P@1,Answer@1,Answer@2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["measures"] == {
        "P@1": pytest.approx(2 / 3),
        "Answer@1": pytest.approx(1 / 3),
        "Answer@2": pytest.approx(2 / 3),
    }


def test_a_run_of_other_questions_is_refused(folder, tmp_path, capsys):
    (tmp_path / "run.trec").write_text("q3 Q0 d1 1 2.0 x\n")  # q3 has no answers
    assert evaluate("answered", "--answers") == 1
    error = capsys.readouterr().err
    assert "run.trec: must hold results for the evaluated queries, such as 'q1'." in error


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        ("neither", ["--answers"], "must hold answers.jsonl or answers.jsonl.gz"),
        ("judged", ["--measures", "Answer@5"], "Received: 1 of 3 without any, such as 'q3'"),
        ("neither", ["--measures", "Answer@5"], "must hold answers.jsonl or answers.jsonl.gz"),
        ("answered", [], "`split` must be one of its splits: none (no qrels/SPLIT.tsv)"),
    ],
)
def test_what_is_missing_is_named(folder, capsys, dataset, arguments, message):
    assert evaluate(dataset, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
