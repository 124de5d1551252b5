"""Sets through the library `ir_datasets`: its registry and its parsers on local files."""

from collections import namedtuple
from typing import NamedTuple

import ir_datasets
import pytest

from tfde.cli.main import main
from tfde.data.formats import beir
from tfde.data.formats import ir_datasets as reader
from tfde.data.formats.records import Answers, Judgement, Source
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.types import Document, Query


@pytest.fixture
def register(monkeypatch, tmp_path):
    """Registers sets in the library for one test; its own files go to a folder of the test."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    known = dict(ir_datasets.registry._registered)
    yield lambda name, *parts: ir_datasets.registry.register(name, ir_datasets.Dataset(*parts))
    ir_datasets.registry._registered = known


def tsv_set(folder):
    (folder / "docs.tsv").write_text("d1\tone text\nd2\tanother\n")
    (folder / "queries.tsv").write_text("q1\twhich one?\n")
    (folder / "qrels").write_text("q1 0 d1 1\nq1 0 d2 0\n")
    local, formats = ir_datasets.util.LocalDownload, ir_datasets.formats
    return [
        formats.TsvDocs(local(folder / "docs.tsv")),
        formats.TsvQueries(local(folder / "queries.tsv")),
        formats.TrecQrels(local(folder / "qrels"), {}),
    ]


def test_scifact_is_the_same_through_both(register, data_dir):
    """BEIR's set whole: their parser of BEIR's files and ours, record by record."""
    from ir_datasets.datasets.beir import BeirDocs, BeirQrels, BeirQueries, BeirTitleDoc

    def local(name):
        file = ir_datasets.util.LocalDownload(data_dir / "scifact" / name)
        return ir_datasets.util.GzipExtract(file) if name.endswith(".gz") else file

    queries = next((data_dir / "scifact").glob("queries.jsonl*")).name
    docs = BeirDocs("local", local("corpus.jsonl.gz"), BeirTitleDoc)
    asked = BeirQueries("local", local(queries), ir_datasets.formats.GenericQuery)
    for split in ("train", "test"):
        register(f"local/{split}", docs, asked, BeirQrels(local(f"qrels/{split}.tsv"), {}))
    sources = [Source("set", f"local/{split}", split) for split in ("train", "test")]
    theirs = list(reader.read(sources, Intake()))
    ours = list(beir.read([Source("directory", data_dir / "scifact")], Intake()))
    for kind, count in ((Document, 5183), (Query, 1107), (Judgement, 1256)):
        records = [record for record in theirs if isinstance(record, kind)]
        assert sorted(records) == sorted(record for record in ours if isinstance(record, kind))
        assert len(records) == count


def test_a_set_by_its_id(register, tmp_path, capsys):
    register("mine/test", *tsv_set(tmp_path))
    out = str(tmp_path / "out")
    command = ["convert", "--format", "ir_datasets", "--input", "mine/test", "--output", out]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "mine/test: document from its default text; query from its default text" in shown.err
    assert "2 documents, 1 queries (test 1)" in shown.out


Doc = namedtuple("Doc", "doc_id title text")
Question = namedtuple("Question", "query_id text answers url")


class Titled(Doc):
    def default_text(self):
        return f"{self.title} {self.text}"


class TitleInside(Doc):
    def default_text(self):
        return f"{self.text} ({self.title})"


@pytest.mark.parametrize(
    ("record", "document"),
    [
        (Titled("d", "The title", " its text"), Document("d", "The title", " its text")),
        (Titled("d", "", "text"), Document("d", "", "text")),
        (Titled("d", "title", ""), Document("d", "title", "")),
        (TitleInside("d", "title", "text"), Document("d", "", "text (title)")),
    ],
)
def test_a_title_is_said_once(record, document):
    assert reader._document(Source("set", "s"), Intake(), record, {}) == document


def test_fields_may_be_named(register):
    class Docs:
        def docs_iter(self):
            yield Doc("d", "T", "x")

        def docs_handler(self):
            return self

    class Queries:
        def queries_iter(self):
            yield Question("q", "who?", ("me", "I"), "u")

        def queries_handler(self):
            return self

        def queries_cls(self):
            return Question

    register("fields/test", Docs(), Queries())
    source = Source("set", "fields/test", "test")
    given = ["document=title", "query=url"]
    assert list(reader.read([source], Intake(), columns=given)) == [
        Document("d", "T", "T"),
        Query("q", "u"),
        Answers("q", ("me", "I")),
    ]
    # Records without a default text, and with no field of the name.
    for columns in (None, ["document=body"]):
        rule = r"fields/test: `columns` must name a field of Doc: doc_id, title, text"
        with pytest.raises(ConfigError, match=rule):
            list(reader.read([source], Intake(), columns=columns))
    with pytest.raises(ConfigError, match="KIND=FIELD with a kind of query, document, title"):
        list(reader.read([source], Intake(), columns=["label=x"]))


def test_what_the_library_cannot_read_is_one_line(register, tmp_path):
    parts = tsv_set(tmp_path)
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq1 d2\n")
    register("broken/test", *parts)
    rule = r"broken/test:2: ir_datasets must be able to read it \(RuntimeError: expected 4 columns"
    with pytest.raises(DataError, match=rule):
        list(reader.read([Source("set", "broken/test", "test")], Intake()))


def test_an_unknown_id(register):
    with pytest.raises(ConfigError, match=r"an id of ir_datasets, such as .*Received: 'beir/no'"):
        list(reader.read([Source("set", "beir/no", "test")], Intake()))


def test_what_is_not_read_is_said(register):
    source = Source("set", "msmarco-passage/train", "train")
    assert "not read: docpairs, scoreddocs" in reader.understood(source)


class Page(NamedTuple):
    doc_id: str
    title: str
    text: str
    abstract: str
    url: str
    authors: tuple
    raw: bytes

    def default_text(self):
        return f"{self.title} {self.text} {self.abstract}"


def test_other_fields_are_metadata_unless_the_text_holds_them():
    record = Page("d", "T", "text", "and more", "http://a", (("A", 1), ("B", 2)), b"caf\xe9")
    found = reader._document(Source("set", "s"), Intake(), record, {})
    assert found[:3] == ("d", "T", "text and more")
    assert found.metadata == {"url": "http://a", "authors": [["A", 1], ["B", 2]], "raw": "caf�"}
