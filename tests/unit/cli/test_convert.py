import gzip
import json
import os

import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory

CONTEXT = "It began in 1973. Prices rose."


def squad(title, query_id):
    answer = {"text": "rose", "answer_start": CONTEXT.index("rose")}
    question = {"id": query_id, "question": "What rose?", "answers": [answer]}
    paragraph = {"context": CONTEXT, "qas": [question]}
    return json.dumps({"data": [{"title": title, "paragraphs": [paragraph]}]})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train-v1.1.json").write_text(squad("A", "a"))
    (tmp_path / "dev-v1.1.json.gz").write_bytes(gzip.compress(squad("B", "b").encode()))
    return tmp_path


def convert(*arguments):
    return main(["convert", "--format", "squad", *arguments])


def test_two_files_become_two_splits_of_sentences(folder, capsys):
    inputs = ("--input", "train-v1.1.json", "--input", "dev-v1.1.json.gz")
    assert convert(*inputs, "--output", "out", "--level", "sentence") == 0
    assert capsys.readouterr().out == ("out: 4 documents (sentences), 2 queries (train 1, dev 1)\n")
    dataset = DatasetDirectory("out")
    dataset.validate()
    assert dataset.splits == ("train", "dev")
    assert dataset.qrels("dev") == {"b": {"B-0.1": 1}}
    assert [document.text for document in dataset.documents()] == CONTEXT.replace(
        ". P", ".|P"
    ).split("|") * 2


def test_split_may_be_named(folder):
    assert convert("--input", "train-v1.1.json", "--split", "test", "--output", "out") == 0
    assert DatasetDirectory("out").qrels("test") == {"a": {"A-0": 1}}


def test_output_is_overwritten_only_when_asked(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "precious").write_text("")
    arguments = ("--input", "train-v1.1.json", "--output", "out")
    assert convert(*arguments) == 1
    assert capsys.readouterr().err == (
        "tfde: convert: out: the output exists and is not empty; choose another or remove it.\n"
    )
    assert os.listdir("out") == ["precious"]
    assert convert(*arguments, "--overwrite") == 0
    assert "precious" not in os.listdir("out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "no.json", "--split", "dev"], "no.json: `input` must be a file that exists."),
        (["--input", "no.json"], "`split` must be given where the file name does not begin with"),
        (
            ["--input", "train-v1.1.json", "--split", "dev", "--split", "dev"],
            "`split` must be given once or once for each `input`. Received: 2 for 1 inputs",
        ),
        (["--input", "train-v1.1.json", "--split", "../x"], "`split` must be a name of letters"),
    ],
)
def test_wrong_use_is_one_line(folder, capsys, arguments, message):
    assert convert(*arguments, "--output", "out") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


def test_question_in_two_files_leaves_nothing(folder, capsys):
    (folder / "dev-again.json").write_text(squad("C", "a"))
    inputs = ("--input", "train-v1.1.json", "--input", "dev-again.json")
    assert convert(*inputs, "--output", "out") == 1
    assert "out/queries.jsonl.gz:2: field '_id' must be unique" in capsys.readouterr().err
    assert not (folder / "out").exists()
