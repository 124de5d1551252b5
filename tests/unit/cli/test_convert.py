import gzip
import json
import os
from pathlib import Path

import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.registry import FORMATS

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
    (tmp_path / "squad.json").write_text(squad("S", "s"))
    (tmp_path / "values.json").write_text(squad("V", "v"))
    (tmp_path / "dev-v1.1.json.gz").write_bytes(gzip.compress(squad("B", "b").encode()))
    return tmp_path


def convert(*arguments):
    return main(["convert", "--format", "squad", *arguments])


def test_two_files_become_two_splits_of_sentences(folder, capsys):
    inputs = ("--input", "train-v1.1.json", "--input", "dev-v1.1.json.gz")
    assert convert(*inputs, "--output", "out", "--level", "sentence") == 0
    assert capsys.readouterr().out == (
        "out: 4 documents (sentences), 2 queries (train 1, dev 1), 2 with answers\n"
    )
    dataset = DatasetDirectory("out")
    dataset.validate()
    assert dataset.splits == ("train", "dev")
    assert dataset.qrels("dev") == {"b": {"B-0.1": 1}}
    assert [document.text for document in dataset.documents()] == CONTEXT.replace(
        ". P", ".|P"
    ).split("|") * 2


def test_an_option_of_another_format_is_refused(folder, capsys):
    (folder / "train.csv").write_text("question,answer\na,b\n")
    arguments = ["convert", "--format", "sentence-transformers", "--input", "train.csv"]
    assert main([*arguments, "--output", "out", "--level", "sentence"]) == 1
    assert capsys.readouterr().err == (
        "tfde convert: `--level` is for squad, mrqa. Received: --format sentence-transformers\n"
    )
    assert not (folder / "out").exists()


def test_split_may_be_named(folder):
    assert convert("--input", "train-v1.1.json", "--split", "test", "--output", "out") == 0
    assert DatasetDirectory("out").qrels("test") == {"a": {"A-0": 1}}


def test_output_is_overwritten_only_when_asked(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "precious").write_text("")
    arguments = ("--input", "train-v1.1.json", "--output", "out")
    assert convert(*arguments) == 1
    assert capsys.readouterr().err == (
        "tfde convert: out: the output exists and is not empty; choose another, or give"
        " --overwrite.\n"
    )
    assert os.listdir("out") == ["precious"]
    assert convert(*arguments, "--overwrite") == 0
    assert "precious" not in os.listdir("out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "no.json", "--split", "dev"], "no.json: `input` must be a file that exists."),
        (
            ["--input", "squad.json"],
            "`split` must be given where the file name does not begin with",
        ),
        (
            ["--input", "train-v1.1.json", "--split", "dev", "--split", "dev"],
            "`split` must be given once or once for each `input` that has a split. Received: 2 f",
        ),
        (["--input", "train-v1.1.json", "--split", "../x"], "`split` must be a name of letters"),
        (["--input", "values.json"], "with train, dev or test or hold one of train, dev, validati"),
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
    assert "dev-again.json: field '_id' must be unique. Received: 'a'" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_names_of_files_tell_the_split(folder):
    for name, split in (
        ("qrels.dev.small.json", "dev"),
        ("squad_validation.json", "dev"),
        ("trainset.json", "train"),
        ("val.json", "dev"),
    ):
        (folder / name).write_text(squad("A", "a"))
        assert convert("--input", name, "--output", f"out_{name}") == 0
        assert DatasetDirectory(f"out_{name}").splits == (split,)


def test_parts_of_a_format_and_the_way_back(folder, capsys):
    (folder / "c.tsv").write_text("1\tone\n2\ttwo\n")
    (folder / "q.tsv").write_text("7\twhich?\n")
    (folder / "qrels.train.tsv").write_text("7\t0\t2\t1\n")
    (folder / "triples=.tsv").write_text("7\t2\t1\n")
    parts = [
        "collection=c.tsv",
        "queries=q.tsv",
        "qrels=qrels.train.tsv",
        "id_triples=triples=.tsv",
    ]
    inputs = [argument for part in parts for argument in ("--input", part)]
    output = ["--output", "out"]
    assert main(["convert", "--format", "msmarco", *inputs, *output, "--split", "train"]) == 0
    assert capsys.readouterr().out == (
        "out: 2 documents, 1 queries (train 1), training pairs (train 1)\n"
    )
    arguments = ["--format", "msmarco", "--dataset", "out", "--pack", "gz"]
    assert main(["convert", *arguments, "--split", "train", "--output", "back"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "back/collection.tsv.gz: 2",
        "back/queries.train.tsv.gz: 1",
        "back/qrels.train.tsv.gz: 1",
        "back/qidpidtriples.train.tsv.gz: 1",
    ]
    text = gzip.decompress((folder / "back" / "qrels.train.tsv.gz").read_bytes())
    assert text == b"7\t0\t2\t1\n"


def test_bad_records_are_skipped_counted_and_named(folder, capsys):
    (folder / "train.jsonl").write_text(
        '{"anchor": "a", "positive": "b"}\n{"anchor": 3, "positive": "b"}\n{\n'
    )
    arguments = ["--format", "sentence-transformers", "--input", "train.jsonl", "--output", "out"]
    assert main(["convert", *arguments]) == 1
    error = capsys.readouterr().err
    assert "train.jsonl:2: field 'anchor' must be a string. Received: 3 (--skip_bad leaves" in error
    assert error.count("\n") == 2  # what was understood, and the fault
    assert not (folder / "out").exists()
    assert main(["convert", *arguments, "--skip_bad"]) == 0
    out, error = capsys.readouterr()
    assert out == "out: 1 documents, 1 queries (train 1)\n2 bad records skipped\n"
    assert "skipped: train.jsonl:2: field 'anchor' must be a string. Received: 3" in error
    assert "skipped: train.jsonl:3: must be JSON" in error


def test_pairs_with_labels(folder, capsys):
    header = "index\tquestion\tsentence\tlabel\n"
    (folder / "train.tsv").write_text(header + "0\ta\tb\tentailment\n1\tc\td\tentailment\n")
    (folder / "dev.tsv.gz").write_bytes(gzip.compress((header + "0\te\tf\tno\n").encode()))
    inputs = ["--input", "train.tsv", "--input", "dev.tsv.gz"]
    assert main(["convert", "--format", "sentence-pairs", *inputs, "--output", "out"]) == 0
    assert capsys.readouterr().out == (
        "out/train.tsv: 2 pairs (entailment 2)\nout/dev.tsv: 1 pairs (no 1)\n"
    )
    assert (folder / "out" / "dev.tsv").read_text() == "sentence1\tsentence2\tlabel\ne\tf\tno\n"


def test_pairs_of_superglue(folder, capsys):
    (folder / "train.jsonl").write_text(
        '{"question": "is it", "passage": "it  is", "label": true, "idx": 0}\n'
        '{"question": "was it", "passage": "no", "label": false, "idx": 1}\n'
    )
    (folder / "val.jsonl").write_text(
        '{"premise": "a b", "hypothesis": "a", "label": "entailment", "idx": 0}\n'
        '{"premise": "a b", "label": "entailment", "idx": 1}\n'
    )
    command = ["convert", "--format", "sentence-pairs", "--output", "out"]
    assert main([*command, "--input", "train.jsonl"]) == 0
    assert capsys.readouterr().out == "out/train.tsv: 2 pairs (false 1, true 1)\n"
    assert (folder / "out" / "train.tsv").read_text().splitlines()[1] == "is it\tit is\ttrue"
    assert main([*command, "--overwrite", "--input", "val.jsonl"]) == 1
    assert "val.jsonl:2: a row must have 'premise', 'hypothesis', 'label'." in (
        capsys.readouterr().err
    )


def test_pairs_that_hugging_face_marks_as_without_a_label(folder, capsys):
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, -1, 2)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["convert", "--format", "sentence-pairs", "--input", "train.jsonl"]
    assert main([*command, "--output", "out"]) == 0
    first, note = capsys.readouterr().out.splitlines()
    assert first == "out/train.tsv: 3 pairs (-1 1, 0 1, 2 1)"
    assert note.startswith("note: 1 pairs are labelled -1, which is how Hugging Face's sets mark")


def test_pairs_of_any_columns(folder, capsys):
    (folder / "train.csv").write_text('q,answer,good\n"what, now?",this,1\nwho,"he ""X""",0\n')
    (folder / "dev.jsonl").write_text(
        '{"q": "a", "answer": "b", "good": 0}\n{"q": "c", "answer": "d"}\n'
    )
    command = ["convert", "--format", "sentence-pairs", "--output", "out"]
    columns = ["--columns", "q", "answer", "good"]
    assert main([*command, "--input", "train.csv", *columns]) == 0
    assert (folder / "out" / "train.tsv").read_text().splitlines()[1:] == [
        "what, now?\tthis\t1",
        'who\the "X"\t0',
    ]
    assert main([*command, "--input", "train.csv", "--overwrite"]) == 1
    assert "train.csv:1: `columns` must be named, or be one of these" in capsys.readouterr().err
    assert main([*command, "--input", "train.csv", "--overwrite", *columns[:-1], "label"]) == 1
    assert "train.csv:1: column 'label' is missing." in capsys.readouterr().err
    assert main([*command, "--input", "dev.jsonl", "--overwrite", *columns]) == 1
    assert "dev.jsonl:2: a row must have 'q', 'answer', 'good'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --input, to read a format, or --dataset, to write one."),
        (["--input", "squad.json", "--dataset", "."], "give either --input, to read a format, or"),
        (["--dataset", "nowhere"], "nowhere: a dataset directory"),
        (
            ["--dataset", "data"],
            "`format` can be written for beir, msmarco, dpr, trec, sentence-transformers",
        ),
        (["--dataset", "data", "--format", "trec", "--split", "x"], "must be one of its splits"),
        (
            ["--input", "documents=squad.json", "--format", "trec"],
            "`input` must hold topics=FILE: trec is documents (a file or a folder of files)",
        ),
        (
            ["--input", "mrqa=squad.json", "--format", "multireqa"],
            "`input` must hold boundaries=FILE: multireqa is mrqa",
        ),
        (["--input", ".", "--format", "dpr"], ".: `input` must be a file that exists."),
        (
            ["--input", "data", "--format", "beir", "--split", "dev"],
            "`split` is for inputs that have one; these have none, or hold their splits themselv",
        ),
    ],
)
def test_wrong_use_of_formats_is_one_line(folder, capsys, arguments, message):
    (folder / "data" / "qrels").mkdir(parents=True)
    (folder / "data" / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    (folder / "data" / "queries.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    (folder / "data" / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    assert convert(*arguments, "--output", "out") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_line_in_the_documents(name):
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in text


@pytest.mark.parametrize("name", ["csv", ".tsv", "JSONL"])
def test_the_end_of_a_file_name_is_no_format(tmp_path, capsys, name):
    with pytest.raises(SystemExit) as ended:
        main(["convert", "--format", name, "--input", "x.csv", "--output", str(tmp_path / "o")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "a table is of the format sentence-transformers, where its rows hold" in said
    assert f"Received: {name!r}" in said
