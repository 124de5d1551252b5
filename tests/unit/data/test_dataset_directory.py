import csv
import gzip
import hashlib
import itertools
import json
import os

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset, write_dataset_directory
from tfde.data.formats.records import Judgement
from tfde.data.formats.registry import write_format
from tfde.data.qrels import read_qrels, write_qrels
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Query

CORPUS = [
    {"_id": "d1", "title": "One", "text": "first text"},
    {"_id": "d2", "text": "second text", "metadata": {"x": 1}},
    {"_id": "d3", "title": "", "text": "third text"},
]
QUERIES = [{"_id": "q1", "text": "first?"}, {"_id": "q2", "text": "second?"}]
HEADER = "query-id\tcorpus-id\tscore\n"


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(lines(CORPUS))
    (tmp_path / "queries.jsonl").write_text(lines(QUERIES))
    (tmp_path / "qrels" / "train.tsv").write_text(HEADER + "q1\td1\t1\nq1\td3\t0\n")
    with gzip.open(tmp_path / "qrels" / "test.tsv.gz", "wt") as file:
        file.write(HEADER + "q2\td2\t2\n")
    return tmp_path


def test_reads_what_is_there(folder):
    dataset = DatasetDirectory(folder)
    assert dataset.name == folder.name
    assert dataset.splits == ("train", "test")
    assert dataset.num_documents == 3
    assert list(dataset.documents()) == [
        Document("d1", "One", "first text"),
        Document("d2", "", "second text", {"x": 1}),
        Document("d3", "", "third text"),
    ]
    assert list(dataset.queries()) == [Query("q1", "first?"), Query("q2", "second?")]
    assert list(dataset.queries("test")) == [Query("q2", "second?")]
    assert dataset.qrels("train") == {"q1": {"d1": 1, "d3": 0}}
    assert dataset.qrels("test") == {"q2": {"d2": 2}}
    assert list(dataset.document_store()) == ["d1", "d2", "d3"]
    assert list(dataset.document_store(["d3", "d9"])) == ["d3"]
    dataset.validate()


def test_checksums_are_of_the_files(folder):
    sums = DatasetDirectory(folder).checksums()
    assert list(sums) == ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv.gz"]
    for name, value in sums.items():
        assert value == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_missing_parts_are_named(folder):
    with pytest.raises(ConfigError, match=r"nowhere: a dataset directory \(corpus\.jsonl\[\.gz\]"):
        DatasetDirectory(folder / "nowhere")
    with pytest.raises(ConfigError, match=r"`split` must be one of .*: train, test\. Rec.*'dev'"):
        DatasetDirectory(folder).qrels("dev")
    os.remove(folder / "queries.jsonl")
    with pytest.raises(ConfigError, match=r"must hold queries\.jsonl or queries\.jsonl\.gz"):
        list(DatasetDirectory(folder).queries())
    os.remove(folder / "corpus.jsonl")
    with pytest.raises(ConfigError, match=r"must hold corpus\.jsonl or corpus\.jsonl\.gz"):
        DatasetDirectory(folder)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "d4"}', r"corpus\.jsonl:4: field 'text' is missing"),
        ("corpus.jsonl", '{"text": "x"}', r"corpus\.jsonl:4: field '_id' is missing"),
        ("corpus.jsonl", '{"_id": "d4", "text": "x", "title": 3}', r":4: field 'title' must be a"),
        ("corpus.jsonl", '{"_id": "d 4", "text": "x"}', r":4: field '_id' must not hold white"),
        (
            "corpus.jsonl",
            '{"_id": "d2", "text": "x"}',
            r"corpus\.jsonl:4: field '_id' must be unique; line 2 has it too\. Received: 'd2'",
        ),
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "x"}',
            r"queries\.jsonl:3: field '_id' must be unique; line 1 has it too\. Received: 'q1'",
        ),
        ("qrels/train.tsv", '"q2"\td2', r"train\.tsv:4: must have 3 tab-separated columns"),
        ("qrels/train.tsv", "q2\td2", r"train\.tsv:4: must have 3 tab-separated columns"),
        ("qrels/train.tsv", "q2 d2 1", r"train\.tsv:4: must have 3 tab-separated columns"),
        ("qrels/train.tsv", "q2\td2\t1.5", r"train\.tsv:4: score must be an integer.*'1\.5'"),
        ("qrels/train.tsv", "q2\td2\t1_0", r"train\.tsv:4: score must be an integer.*'1_0'"),
        ("qrels/train.tsv", "q2\td2\t3000000000", r"train\.tsv:4: score .* to 1000000\."),
        ("qrels/train.tsv", "q2\t\t1", r"train\.tsv:4: corpus-id must be an id without white"),
        ("qrels/train.tsv", "q1\td1\t1", r"train\.tsv:4: a query and document must be judged o"),
        ("qrels/train.tsv", "q9\td1\t1", r"train\.tsv:4: query-id must be an id of the queries"),
    ],
)
def test_bad_record_is_named(folder, name, line, message):
    with open(folder / name, "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        DatasetDirectory(folder).validate()


@pytest.mark.parametrize("content", ["", "q1\td1\t1\n"])
def test_qrels_need_a_header(folder, content):
    (folder / "qrels" / "train.tsv").write_text(content)
    with pytest.raises(DataError, match="header"):
        DatasetDirectory(folder).qrels("train")


def test_split_that_judges_an_unknown_query_names_the_line(folder):
    with open(folder / "qrels" / "train.tsv", "a") as file:
        file.write("q9\td1\t1\n")
    with pytest.raises(DataError, match=r"train\.tsv:4: query-id must be an id of the queries"):
        list(DatasetDirectory(folder).queries("train"))


def test_early_duplicate_in_a_long_corpus_is_found_long_before_its_end(folder):
    ids = ["same", "same", *map(str, range(5000))]
    (folder / "corpus.jsonl").write_text(lines({"_id": i, "text": "x"} for i in ids))
    stream = DatasetDirectory(folder).documents()
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: field '_id' must be unique"):
        list(itertools.islice(stream, 1024))


def test_written_directory_reads_back_and_is_deterministic(tmp_path):
    documents = [Document("d1", "T", "é 汉"), Document("d2", "", "b")]
    queries = [Query("q1", "?")]
    qrels = {"train": {"q1": {"d2": 1}}, "dev": {}}
    for name in "ab":
        write_dataset_directory(tmp_path / name, iter(documents), iter(queries), qrels)
    dataset = DatasetDirectory(tmp_path / "a")
    assert list(dataset.documents()) == documents
    assert list(dataset.queries()) == queries
    assert {split: dataset.qrels(split) for split in dataset.splits} == qrels
    assert dataset.checksums() == DatasetDirectory(tmp_path / "b").checksums()


def test_writing_something_invalid_leaves_nothing(tmp_path):
    qrels = {"train": {"q1": {"d9": 1}}}
    with pytest.raises(DataError, match=r"out/qrels/train\.tsv: no judged document is in the cor"):
        write_dataset_directory(
            tmp_path / "out", [Document("d1", "", "x")], [Query("q1", "?")], qrels
        )
    assert os.listdir(tmp_path) == []


def test_documents_without_text_are_taken_and_told(folder, caplog):
    with open(folder / "corpus.jsonl", "a") as file:
        file.write('{"_id": "d4", "title": "", "text": "", "metadata": {}}\n')
        file.write('{"_id": "d5", "title": "T", "text": " "}\n{"_id": "d6", "text": " \\n"}\n')
    dataset = DatasetDirectory(folder)
    assert list(dataset.documents())[3:] == [
        Document("d4", "", ""),
        Document("d5", "T", " "),
        Document("d6", "", " \n"),
    ]
    dataset.validate()  # reads the corpus again and tells nothing twice
    (message,) = caplog.messages
    assert (
        "documents without title and text are taken as they are: 2, the first in line 4" in message
    )


def test_judgements_of_documents_elsewhere_are_kept_and_told(folder, caplog):
    with open(folder / "qrels" / "train.tsv", "a") as file:
        file.write("q1\td9\t1\nq2\td8\t0\n")
    dataset = DatasetDirectory(folder)
    dataset.validate()
    (message,) = caplog.messages
    assert "train.tsv: 2 judgements are of documents that are not in the corpus" in message
    assert "'d9'" in message
    assert dataset.qrels("train")["q1"] == {"d1": 1, "d3": 0, "d9": 1}
    assert dataset.relevant("train") == {"q1": ("d1",), "q2": ()}


def test_judgements_of_another_corpus_are_refused(folder):
    (folder / "qrels" / "train.tsv").write_text(HEADER + "q1\td8\t1\nq1\td9\t0\n")
    for use in (lambda dataset: dataset.validate(), lambda dataset: dataset.relevant("train")):
        with pytest.raises(
            DataError, match=r"train\.tsv: no judged document is in the corpus\. .*8"
        ):
            use(DatasetDirectory(folder))


def test_real_dataset(data_dir):
    dataset = DatasetDirectory(data_dir / "scifact")
    assert dataset.splits == ("train", "test")
    assert dataset.num_documents == 5183
    assert len(list(dataset.queries("test"))) == 300
    assert sum(map(len, dataset.qrels("test").values())) == 339
    dataset.validate()


def test_ids_with_quotes_are_as_beir_has_them(tmp_path):
    """Its loader and its writer are Python's csv, with tabs."""
    qrels = {'"q"': {'d"3': 1, '"': 1}, "q": {'"d': 2, 'd""': 0}}
    rows = [(q, d, str(grade)) for q, judged in qrels.items() for d, grade in judged.items()]
    with open(tmp_path / "theirs.tsv", "w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([HEADER.split(), *rows])
    assert read_qrels(tmp_path / "theirs.tsv") == qrels
    write_qrels(tmp_path / "ours.tsv", qrels)
    assert read_qrels(tmp_path / "ours.tsv") == qrels
    with open(tmp_path / "ours.tsv", newline="") as file:
        assert [tuple(row) for row in csv.reader(file, delimiter="\t")][1:] == rows


def test_ids_with_quotes_come_back_from_every_writer(tmp_path):
    judged = {'"q"': {'"Weird_Al"_Yankovic': 1, 'd"3': 2}}
    documents = [Document(doc_id, "", f"text of {doc_id}") for doc_id in judged['"q"']]
    records = [*documents, Query('"q"', "who is al")]
    records += [Judgement("test", '"q"', doc_id, grade) for doc_id, grade in judged['"q"'].items()]
    counts = write_dataset(tmp_path / "ours", records)
    assert counts.judged_elsewhere == 0
    assert DatasetDirectory(tmp_path / "ours").qrels("test") == judged
    write_format("beir", DatasetDirectory(tmp_path / "ours"), tmp_path / "theirs")
    assert read_qrels(tmp_path / "theirs" / "qrels" / "test.tsv") == judged
    with pytest.raises(ConfigError, match="must not be the dataset that is written"):
        write_format(
            "msmarco", DatasetDirectory(tmp_path / "ours"), tmp_path / "ours", overwrite=True
        )
