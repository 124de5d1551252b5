"""Run files that cannot be what was meant."""

import json
from pathlib import Path

import pytest
import tiny

from tfde.cli.main import main
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Judgement
from tfde.retrieval.runs import read_run, write_run
from tfde.types import Document, Query


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [Document(f"d{n}", "", f"text {n}") for n in range(4)]
    records += [Query(f"q{n}", f"question {n}") for n in range(4)]
    records += [Judgement("test", f"q{n}", f"d{n}", 1) for n in range(4)]
    write_dataset("data", records)
    return tmp_path


def evaluate(*arguments):
    return main(["evaluate", "--dataset", "data", "--measures", "P@1", *arguments])


def test_a_run_of_other_queries_is_refused(folder, capsys):
    write_run("other.trec", {"x1": {"d0": 1.0}})
    assert evaluate("--run_file", "other.trec") == 1
    assert capsys.readouterr().err == (
        "tfde evaluate: other.trec: must hold results for the evaluated queries, such as 'q0'."
        " Received: 'x1' and others, none of them evaluated\n"
    )


def test_queries_without_results_are_told(folder, capsys):
    write_run("some.trec", {f"q{n}": {f"d{n}": 1.0} for n in range(3)})
    assert evaluate("--run_file", "some.trec") == 0
    out, error = capsys.readouterr()
    assert "0.7500" in out
    assert error == (
        "tfde evaluate: some.trec: has results for 3 of 4 evaluated queries; the others count 0\n"
    )


def test_names_and_shares_that_would_mislead(folder, capsys):
    write_run("a.trec", {f"q{n}": {f"d{n}": 1.0} for n in range(4)})
    assert evaluate("--run_file", "x=a.trec", "--run_file", "x=a.trec") == 1
    assert "systems must have names of their own. Received: 'x' twice" in capsys.readouterr().err
    assert evaluate("--bm25", "--parent_weight", "0.5") == 1
    assert "`--parent_weight` is for models: give --model." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("query_id", "rr", "found"), [("q", "0.0000", "d1"), ("d1", "1.0000", "d2")]
)
def test_the_query_itself_is_left_out_and_the_depth_kept(folder, capsys, query_id, rr, found):
    records = [Document("d1", "", "cat cat"), Document("d2", "", "cat dog"), Query(query_id, "cat")]
    write_dataset("cats", [*records, Judgement("test", query_id, "d2", 1)])
    arguments = ["--dataset", "cats", "--bm25", "--measures", "RR", "-k", "1", "--save_runs", "r"]
    assert main(["evaluate", *arguments, "--ignore_identical_ids"]) == 0
    assert rr in capsys.readouterr().out
    assert list(read_run("r/1_BM25.trec")[query_id]) == [found]


def test_guards_are_measured_beside_the_home_set(folder, capsys):
    """By BM25, which finds the one answer of two first; a query is not its own answer."""
    records = [Document("q", "", "cat"), Document("d1", "", "cat cat"), Document("d2", "", "a dog")]
    records += [Query("q", "cat"), Query("r", "dog"), Judgement("test", "q", "d1", 1)]
    write_dataset("away", [*records, Judgement("test", "r", "d1", 1)])
    write_run("a.trec", {f"q{n}": {f"d{n}": 1.0} for n in range(4)})
    guards = ["--guard", "away", "--guard", "home=data"]
    assert evaluate("--bm25", "--run_file", "a.trec", *guards) == 0
    table = capsys.readouterr().out.partition("away from home, test: nDCG@10\n\n")[2]
    cells = [line.strip("| ").split("|") for line in table.splitlines()]
    assert [cell.strip() for cell in cells[0]] == ["system", "away", "home", "mean", "seconds"]
    assert [cell.strip() for cell in cells[2][:4]] == ["BM25", "0.5000", "0.0000", "0.2500"]
    assert len(cells) == 3  # a run file is of one data set
    assert evaluate("--bm25", "--json", *guards) == 0
    (row,) = json.loads(capsys.readouterr().out)["guards"]
    assert row["measures"] == {"away": 0.5, "home": 0.0, "mean": 0.25}
    assert evaluate("--bm25", "--guard", "data", "--guard", "data") == 1
    assert "`--guard` must be NAME=DATASET, each name once" in capsys.readouterr().err
    write_run("b.trec", {"q0": {"d0": 1.0}})
    for options, rule in (
        (["--run_file", "b.trec", "--guard", "away"], "`--guard` must be beside --model or --bm25"),
        (["--bm25", "--guard", "mean=away"], "`--guard` must be NAME=DATASET, not 'mean'"),
    ):
        assert evaluate(*options) == 1
        assert rule in capsys.readouterr().err
    assert evaluate("--bm25", "-k", "1", "--json", "--guard", "away") == 0
    assert json.loads(capsys.readouterr().out)["guards"][0]["measures"]["away"] == 0.5
    assert evaluate("--bm25", "--guard", "nowhere") == 1
    assert "nowhere: a dataset directory" in capsys.readouterr().err


def test_queries_without_a_relevant_document_are_told(folder, capsys):
    records = [Document("d", "", "cat"), Query("q", "cat"), Query("r", "dog")]
    judged = [Judgement("test", "q", "d", 1), Judgement("test", "r", "d", 0)]
    counts = write_dataset("labels", [*records, *judged])
    assert counts.without_relevant == {"test": 1}
    assert main(["evaluate", "--dataset", "labels", "--bm25", "--measures", "R@10"]) == 0
    out, error = capsys.readouterr()
    assert "0.5000" in out
    assert "1 of 2 queries have no relevant document; they count 0 in every measure" in error


def test_parents_are_of_the_home_set_alone(folder, capsys):
    """The ids of a guard need no parents."""
    tiny.dual_encoder().save_to_preset("model")
    records = [Document(f"p{n}.{m}", "", f"red apple {m}") for n in range(2) for m in range(2)]
    write_dataset("parts", [*records, Query("q", "red"), Judgement("test", "q", "p0.0", 1)])
    command = ["evaluate", "--dataset", "parts", "--model", "model", "--parent_weight", "0.5"]
    assert main([*command, "--measures", "RR", "--guard", "data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guards"][0]["measures"]["data"] > 0


def test_a_run_that_is_read_is_not_written_over(folder, capsys):
    """Systems are numbered by their place, so a name may come again in the same folder."""
    write_run("a.trec", {f"q{n}": {f"d{n}": 1.0} for n in range(4)})
    before = Path("a.trec").read_bytes()
    assert evaluate("--bm25", "--run_file", "old=a.trec", "--save_runs", "r") == 0
    assert [file.name for file in Path("r").iterdir()] == ["2_BM25.trec"]
    Path("r/2_BM25.trec").unlink()
    Path("r/2_BM25.trec").symlink_to("../a.trec")
    capsys.readouterr()
    assert evaluate("--bm25", "--run_file", "old=a.trec", "--save_runs", "r") == 1
    assert "`output` must be another file than those that are read" in capsys.readouterr().err
    assert Path("a.trec").read_bytes() == before
