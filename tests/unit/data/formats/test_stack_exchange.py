"""Questions of a Stack Exchange community with their answers."""

import gzip
from xml.sax.saxutils import quoteattr

import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import stack_exchange
from tfde.data.formats.records import Judgement, Source
from tfde.data.formats.stack_exchange import plain_text
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.types import Document, Query


def row(**attributes):
    inside = " ".join(f"{name}={quoteattr(str(value))}" for name, value in attributes.items())
    return f"  <row {inside} />\n"


def question(number, title, **more):
    return row(Id=number, PostTypeId=1, Score=3, Title=title, Body="<p>b</p>", **more)


def answer(number, parent, score, body="<p>an answer</p>"):
    return row(Id=number, PostTypeId=2, ParentId=parent, Score=score, Body=body)


def posts(path, *rows):
    text = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(rows) + "</posts>"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


ROWS = [
    question(1, "Why  is 2 < 3?", AcceptedAnswerId=4, Tags="<numbers><order-theory>"),
    answer(2, 1, 99),
    question(3, "What is a cat?", Tags="|animals|"),
    answer(4, 1, 0, "<p>Because &lt; says <b>so</b>.</p>\n\n<pre><code>2 &lt; 3</code></pre>"),
    answer(5, 3, 7, "first of equals"),
    answer(6, 3, 7),
    answer(7, 3, 2),
    question(8, "Unanswered?"),
    question(9, "Badly answered?", AcceptedAnswerId=77),
    answer(10, 9, 0),
    row(Id=11, PostTypeId=5, Body="about a tag"),
]


def test_each_question_has_its_accepted_or_best_answer(tmp_path):
    path = posts(tmp_path / "cats" / "Posts.xml.gz", *ROWS)
    intake = Intake()
    records = list(stack_exchange.read([Source("posts", path, "train")], intake))
    assert [record for record in records if not isinstance(record, Judgement)] == [
        Query("1", "Why is 2 < 3?", {"tags": ["numbers", "order-theory"]}),
        Query("3", "What is a cat?", {"tags": ["animals"]}),
        Document("4", "", "Because < says so.\n2 < 3"),
        Document("5", "", "first of equals"),
    ]
    assert [record for record in records if isinstance(record, Judgement)] == [
        Judgement("train", "1", "4", 1),
        Judgement("train", "3", "5", 1),
    ]
    assert intake.left_out == {
        "questions without an answer that was accepted or praised": 2,
        "other answers": 4,
        "posts of other kinds": 1,
    }


def test_communities_keep_apart(tmp_path, capsys):
    for name in ("cats", "dogs"):
        posts(tmp_path / name / "Posts.xml", question(1, f"Of {name}?"), answer(2, 1, 1, name))
    inputs = [f"--input={tmp_path / name / 'Posts.xml'}" for name in ("cats", "dogs")]
    arguments = ["convert", "--format", "stack-exchange", *inputs, "--split", "train"]
    assert main([*arguments, "--output", str(tmp_path / "data")]) == 0
    assert "2 documents, 2 queries (train 2)" in capsys.readouterr().out
    dataset = DatasetDirectory(tmp_path / "data")
    texts = {document.doc_id: document.text for document in dataset.documents()}
    assert texts == {"2": "cats", "dogs-2": "dogs"}
    assert dataset.qrels("train") == {"1": {"2": 1}, "dogs-1": {"dogs-2": 1}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("one<br/>two <a href='x'>three</a>, four", "one\ntwo three, four"),
        ("<ul><li>a</li><li>b&nbsp;c</li></ul>d &amp; e", "a\nb c\nd & e"),
        ("<p>not closed <b>bold", "not closed bold"),
        ("", ""),
    ],
)
def test_plain_text(body, expected):
    assert plain_text(body) == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("  <row Id='1' PostTypeId='1'\n", r"Posts\.xml:3: must be a well-formed <row>"),
        (row(Id="--7", PostTypeId=1), r"attribute Id must be a whole number\. .*'--7'"),
        (row(Id="x", PostTypeId=1), r"Posts\.xml:3: attribute Id must be a whole number\. .*'x'"),
        (row(Id=1, PostTypeId=2, Score=1), r"xml:3: attribute ParentId must be a whole number"),
    ],
)
def test_a_bad_row_is_named_and_skipped_only_when_asked(tmp_path, bad, message):
    good = [question(20, "Good?"), answer(21, 20, 1)]
    source = Source("posts", posts(tmp_path / "c" / "Posts.xml", bad, *good), "train")
    with pytest.raises(DataError, match=message):
        list(stack_exchange.read([source], Intake()))
    intake = Intake(skip_bad=True)
    assert len(list(stack_exchange.read([source], intake))) == 3
    assert intake.skipped == 1


def test_answers_without_question_or_text(tmp_path):
    rows = [
        answer(2, 77, 5),
        question(3, "Only a picture?"),
        answer(4, 3, 9, "<p><img src='x'/></p>"),
        answer(5, 3, 1, "words"),
    ]
    source = Source("posts", posts(tmp_path / "c" / "Posts.xml", *rows), "train")
    intake = Intake()
    records = list(stack_exchange.read([source], intake))
    assert [r.doc_id for r in records if isinstance(r, Document)] == ["5"]
    assert intake.left_out == {"answers without their question": 1, "other answers": 1}


def test_communities_of_one_name_are_refused(tmp_path):
    paths = [tmp_path / name / "beer" / "Posts.xml" for name in "abc"]
    for path in paths:
        path.parent.parent.mkdir()
        posts(path, question(1, "Q?"), answer(2, 1, 1))
    sources = [Source("posts", path, "train") for path in paths]
    with pytest.raises(ConfigError, match=r"folders of different names\. Received: beer twice"):
        list(stack_exchange.read(sources, Intake()))


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "Posts.xml"
    path.write_text("<posts>\n</posts>\n")
    with pytest.raises(DataError, match=r"must hold a <row> in a line, as Stack Exchange's"):
        list(stack_exchange.read([Source("posts", path, "train")], Intake()))
