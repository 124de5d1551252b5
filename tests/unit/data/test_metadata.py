"""What records say beyond id, title and text goes wherever they go."""

import gzip
import json

import numpy as np
import pytest
import tiny

from tfde.data.chunk import chunk_documents
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset_directory
from tfde.data.document_file import DocumentFile
from tfde.data.formats import beir
from tfde.data.formats.records import Source
from tfde.data.metadata import metadata_line, metadata_of
from tfde.errors import DataError
from tfde.retrieval.live.change_log import ChangeLog
from tfde.retrieval.live.change_rows import LogState
from tfde.retrieval.live.recover_changes import salvage
from tfde.storage.intake import Intake
from tfde.types import Document, Query

KNOWN = {"url": "http://a", "year": 2004, "tags": ["é", None, 1.5], "open": True}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"_id": "1", "text": ""}, None),
        ({"_id": "1", "text": "", "metadata": {}}, None),
        ({"_id": "1", "text": "", "metadata": None}, None),
        ({"_id": "1", "metadata": {"year": 1, "of": {"a": [1]}}}, {"year": 1, "of": {"a": [1]}}),
        ({"_id": "1", "url": "u", "metadata": {"year": 1}}, {"url": "u", "year": 1}),
        ({"_id": "1", "url": None, "metadata": "old"}, {"url": None, "metadata": "old"}),
    ],
)
def test_what_a_record_says_more(record, expected):
    assert metadata_of("f", 1, record, ("_id", "text")) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"_id": "1", "text": "", "a": 1, "metadata": {"a": 2}}',
            r"f:1: field 'a' must not stand",
        ),
        ('{"_id": "1", "text": "", "a": NaN}', r"f:1: metadata must hold what JSON can.*nan"),
        ('{"_id": "1", "text": "", "a": "\\ud800"}', r"f:1: metadata must hold what JSON can"),
    ],
)
def test_what_cannot_be_carried(line, message):
    with pytest.raises(DataError, match=message):
        metadata_of("f", 1, json.loads(line), ("_id", "text"))


def test_for_people():
    assert metadata_line(KNOWN) == 'url: http://a; year: 2004; tags: ["é", null, 1.5]; open: true'
    assert metadata_line(None) == ""


@pytest.fixture
def folder(tmp_path):
    documents = [Document("d1", "One", "first", KNOWN), Document("d2", "", "second")]
    queries = [Query("q1", "first?", {"narr": "n"}), Query("q2", "second?")]
    write_dataset_directory(tmp_path / "d", documents, queries, {"test": {"q1": {"d1": 1}}})
    return tmp_path


def test_dataset_directories(folder):
    dataset = DatasetDirectory(folder / "d")
    assert [document.metadata for document in dataset.documents()] == [KNOWN, None]
    assert [query.metadata for query in dataset.queries()] == [{"narr": "n"}, None]
    lines = gzip.decompress((folder / "d" / "corpus.jsonl.gz").read_bytes()).splitlines()
    assert lines[1] == b'{"_id": "d2", "title": "", "text": "second"}'
    beir.write(dataset, folder, splits=["test"], suffix="")
    first, second = (folder / "corpus.jsonl").read_text().splitlines()
    assert json.loads(first)["metadata"] == KNOWN
    assert "metadata" not in second
    written = list(map(json.loads, (folder / "queries.jsonl").read_text().splitlines()))
    assert [query["_id"] for query in written] == ["q1", "q2"]  # the one that no split judges too
    assert written[0]["metadata"] == {"narr": "n"}
    with pytest.raises(DataError, match=r"must be JSON \(Object of type set is not JSON"):
        write_dataset_directory(folder / "e", [Document("d", "", "t", {"a": {1}})], [], {})


def test_passages_have_it():
    preprocessor = tiny.dual_encoder().preprocessor
    document = Document("d", "", " ".join(tiny.WORDS[:20]), KNOWN)
    assert [p.metadata for p in chunk_documents([document], preprocessor)] == [KNOWN, KNOWN]


def test_documents_found_by_id(folder):
    plain = [Document("a", "t", "x"), Document("b", "", "y")]
    DocumentFile.build(plain, folder / "plain")
    # What it was before there was metadata.
    text = '["a", "t", "x"]\n["b", "", "y"]\n'
    assert (folder / "plain" / "documents.jsonl").read_text() == text
    with_some = [plain[0], plain[1]._replace(metadata=KNOWN)]
    store = DocumentFile.build(with_some, folder / "some")
    assert [store.get("a"), store.get("b")] == with_some
    store.close()


def test_changes_of_an_index(tmp_path):
    path = tmp_path / "changes.sqlite"
    ChangeLog.create(path, LogState(0, "m", 0))
    log = ChangeLog(path, write=True)
    vectors = np.eye(2, dtype=np.float32)
    plain = [Document("a", "t", "x"), Document("b", "", "y")]
    log.add(plain, vectors)
    assert "metadata" not in tables(log)
    log.add([plain[0]._replace(metadata=KNOWN), plain[1]], vectors)
    assert "metadata" in tables(log)
    reader = ChangeLog(path, write=False)
    assert reader.documents(["a", "b"])[1]["a"].metadata == KNOWN
    kept = salvage(path)
    assert kept.is_whole
    assert kept.documents == reader.documents(["a", "b"])[1]
    log.add([plain[0]], vectors[:1])  # replaced by one that has none
    assert reader.documents(["a", "b"])[1] == {"a": plain[0], "b": plain[1]}
    log.add([plain[1]._replace(metadata={"n": 1})], vectors[:1])
    log.delete(["b"])
    assert reader.documents(["a", "b"])[1] == {"a": plain[0]}
    log.close()
    reader.close()


def tables(log):
    rows = log._database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {name for (name,) in rows}


@pytest.mark.parametrize("name", ["covid_faq", "multireqa_squad"])
def test_real_sets(data_dir, name, tmp_path):
    path = data_dir / name / "corpus.jsonl.gz"
    given = {}
    with gzip.open(path, "rt") as file:
        for record in map(json.loads, file):
            given[record["_id"]] = record["metadata"]
    source = Source("directory", data_dir / name)
    read = [r for r in beir.read([source], Intake()) if isinstance(r, Document)]
    assert {document.doc_id: document.metadata for document in read} == given
    assert any(given.values())
