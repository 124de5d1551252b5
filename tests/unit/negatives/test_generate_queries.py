"""Queries of a corpus as pairs and as expansion; what is left out, and what a stop leaves."""

import gzip
import json

import pytest

from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.negatives.candidate_sources import Bm25Candidates
from tfde.negatives.generate_queries import GenerationReport, generate_queries
from tfde.negatives.mine import mine_negatives
from tfde.retrieval.bm25_index import Bm25Index

TEXTS = {
    "a": ("T", "paris is the capital of france"),
    "b": ("", "lyon is a city"),
    "c": ("Rome", ""),
    "d": ("", "bread and cheese"),
}
QUERIES = {
    "a": ["capital  of\nfrance", "capital of france", "seat of government"],
    "b": ["paris", "where is lyon"],
    "c": ["", "\u3000 ", "the eternal city"],
    "d": ["capital of france"],
}


class TableGenerator:
    """A generator whose queries are written down."""

    def __init__(self, queries=QUERIES, stop=None):
        self.queries, self.stop, self.asked = queries, stop, []

    def describe(self):
        return {"kind": "table", "queries": self.queries}

    def generate(self, documents):
        for document in documents:
            if document.doc_id == self.stop:
                raise KeyboardInterrupt
            self.asked.append(document.doc_id)
        return [self.queries[document.doc_id] for document in documents]


def write(folder, texts=TEXTS):
    folder.mkdir()
    with open(folder / "corpus.jsonl", "w") as file:
        for doc_id, (title, text) in texts.items():
            file.write(json.dumps({"_id": doc_id, "title": title, "text": text}) + "\n")
    return DatasetDirectory(folder)


def write_the_rest(folder):
    (folder / "qrels").mkdir()
    (folder / "pairs").mkdir()
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "Eternal city?"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tc\t1\n")
    with gzip.open(folder / "answers.jsonl.gz", "wt") as file:
        file.write('{"_id": "q1", "answers": ["Rome"]}\n')
    (folder / "pairs" / "test.jsonl").write_text('{"query": "x", "positive": "c"}\n')


def lines(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_pairs_of_a_corpus_alone(tmp_path, suffix):
    output = tmp_path / f"pairs{suffix}"
    report = generate_queries(write(tmp_path / "data"), TableGenerator(), output)
    assert lines(output) == [
        {"query": "capital of france", "positive": "a"},
        {"query": "seat of government", "positive": "a"},
        {"query": "paris", "positive": "b"},
        {"query": "where is lyon", "positive": "b"},
        {"query": "the eternal city", "positive": "c"},
        {"query": "capital of france", "positive": "d"},
    ]
    assert report == GenerationReport(documents=4, queries=6, bare=0, empty=2, repeated=1, missed=0)
    pairs = read_pairs(output, dataset=tmp_path / "data")
    assert pairs[0].positive.text == TEXTS["a"][1]
    # One query with two positives: neither stands as a negative of the other.
    assert set(pairs[0].positive_doc_ids) == set(pairs[5].positive_doc_ids) == {"a", "d"}
    assert not output.with_name(f"{output.name}.parts").exists()
    assert json.loads(output.with_name(f"{output.name}.json").read_text())["counts"]["queries"] == 6


def test_a_query_that_does_not_find_its_document_is_left_out(tmp_path):
    report = generate_queries(
        write(tmp_path / "data"), TableGenerator(), tmp_path / "p.jsonl", keep_rank=1,
        source=Bm25Candidates(),
    )  # fmt: skip
    # "seat of government" and "the eternal city" share no word with theirs; "paris" is a's.
    assert lines(tmp_path / "p.jsonl") == [
        {"query": "capital of france", "positive": "a"},
        {"query": "where is lyon", "positive": "b"},
    ]
    assert report == GenerationReport(documents=4, queries=2, bare=2, empty=2, repeated=1, missed=4)


def test_expansion_is_a_dataset(tmp_path):
    dataset = write(tmp_path / "data")
    write_the_rest(tmp_path / "data")
    dataset = DatasetDirectory(dataset.path)
    report = generate_queries(dataset, TableGenerator(), tmp_path / "more", form="expansion")
    assert report.queries == 6
    more = DatasetDirectory(tmp_path / "more")
    more.validate()
    assert [document[:3] for document in more.documents()] == [
        ("a", "T", "paris is the capital of france capital of france seat of government"),
        ("b", "", "lyon is a city paris where is lyon"),
        ("c", "Rome", "the eternal city"),
        ("d", "", "bread and cheese capital of france"),
    ]
    assert list(more.queries("test")) == list(dataset.queries("test"))
    assert more.qrels("test") == dataset.qrels("test")
    assert more.answers() == dataset.answers()
    assert more.pair_file("test").read_bytes() == dataset.pair_file("test").read_bytes()
    query = ["Eternal city?"]
    assert [doc_id for doc_id, _ in Bm25Index.build(dataset.documents()).search(query, 2)[0]] == [
        "b"
    ]
    assert Bm25Index.build(more.documents()).search(query, 2)[0][0][0] == "c"
    mined = mine_negatives(
        more, Bm25Candidates(), tmp_path / "n.jsonl", MiningRules(count=1), split="test"
    )
    assert mined.pairs == 1
    # All is done: nothing is asked again.
    again = TableGenerator()
    assert generate_queries(dataset, again, tmp_path / "more", form="expansion") == report
    assert again.asked == []


@pytest.mark.parametrize("form", ["pairs", "expansion"])
def test_a_stopped_run_goes_on(tmp_path, form):
    dataset = write(tmp_path / "data")
    options = {"form": form, "documents_at_once": 1}
    with pytest.raises(KeyboardInterrupt):
        generate_queries(dataset, TableGenerator(stop="c"), tmp_path / "out", **options)
    assert not (tmp_path / "out" / "corpus.jsonl.gz").exists()
    assert not (tmp_path / "out").is_file()
    with pytest.raises(MismatchError, match="was begun otherwise: keep_rank was None, is 3"):
        generate_queries(
            dataset, TableGenerator(), tmp_path / "out", keep_rank=3, source=Bm25Candidates(),
            **options,
        )  # fmt: skip
    rest = TableGenerator()
    report = generate_queries(dataset, rest, tmp_path / "out", **options)
    assert rest.asked == ["c", "d"]
    unbroken = generate_queries(dataset, TableGenerator(), tmp_path / "unbroken", **options)
    assert report == unbroken
    name = "." if form == "pairs" else "corpus.jsonl.gz"
    for suffix in ("", ".json"):
        one, other = (
            (tmp_path / out / name).with_name((tmp_path / out / name).name + suffix)
            for out in ("out", "unbroken")
        )
        assert one.read_bytes() == other.read_bytes()


def test_a_part_that_was_changed(tmp_path):
    dataset = write(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        generate_queries(
            dataset, TableGenerator(stop="c"), tmp_path / "p.jsonl", documents_at_once=1
        )
    (tmp_path / "p.jsonl.parts" / "part-00001.lines").write_text("{}\n")
    with pytest.raises(CorruptError, match=r"part-00001\.lines: differs from what was written"):
        generate_queries(dataset, TableGenerator(), tmp_path / "p.jsonl", documents_at_once=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "texts"}, "`form` must be pairs or expansion. Received: 'texts'"),
        ({"keep_rank": 1}, "`keep_rank` goes with `source`; give both or neither"),
        ({"source": Bm25Candidates()}, "`keep_rank` goes with `source`; give both or neither"),
        ({"keep_rank": 0, "source": Bm25Candidates()}, "`keep_rank` must be at least 1. Rec"),
        ({"documents_at_once": 0}, "`documents_at_once` must be at least 1. Received: 0"),
    ],
)
def test_impossible_values(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        generate_queries(write(tmp_path / "data"), TableGenerator(), tmp_path / "p", **options)


def test_outputs_that_hold_something_else(tmp_path):
    dataset = write(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"data: the output exists and is not empty"):
        generate_queries(dataset, TableGenerator(), dataset.path, form="expansion")
    (tmp_path / "p.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"p\.jsonl: exists already; choose another"):
        generate_queries(dataset, TableGenerator(), tmp_path / "p.jsonl")
    generate_queries(dataset, TableGenerator(), tmp_path / "q.jsonl")
    other = TableGenerator({**QUERIES, "d": ["bread"]})
    with pytest.raises(ConfigError, match=r"q\.jsonl: was made otherwise: gene"):
        generate_queries(dataset, other, tmp_path / "q.jsonl")


def test_documents_without_words(tmp_path):
    dataset = write(tmp_path / "data", {**TEXTS, "e": ("", " ")})
    report = generate_queries(dataset, TableGenerator(), tmp_path / "p.jsonl")
    without = generate_queries(write(tmp_path / "a"), TableGenerator(), tmp_path / "a.jsonl")
    assert report.bare == without.bare + 1  # the generator is not asked about it
    assert (tmp_path / "p.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    empty = write(tmp_path / "empty", {})
    with pytest.raises(DataError, match=r"corpus\.jsonl: must hold at least one document"):
        generate_queries(empty, TableGenerator(), tmp_path / "q.jsonl")
    assert not (tmp_path / "q.jsonl").exists()
    assert not (tmp_path / "q.jsonl").exists()
