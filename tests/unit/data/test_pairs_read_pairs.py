import gzip
import json

import numpy as np
import pytest

from tfde.data.ids import key_of
from tfde.data.pairs.read_pairs import read_pairs, write_pairs
from tfde.data.pairs.table import PairTable, document_key
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Pair, Query


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{i}", "title": f"T{i}", "text": f"text {i}"}) + "\n"
            for i in range(5)
        )
    )
    (folder / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "one?"}\n{"_id": "q2", "text": "two?"}\n'
    )
    (folder / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td3\t2\nq1\td4\t0\nq2\td1\t1\n"
    )
    return folder


def document(i):
    return Document(f"d{i}", f"T{i}", f"text {i}")


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_each_positive_judgement_is_a_pair_that_knows_all_positives(dataset):
    one, two = Query("q1", "one?"), Query("q2", "two?")
    pairs = read_pairs(dataset)
    assert list(pairs) == [
        Pair(one, document(1), (), ("d1", "d3")),
        Pair(one, document(3), (), ("d1", "d3")),
        Pair(two, document(1), (), ("d1",)),
    ]
    assert pairs[-1] == pairs[2]
    assert pairs[:2] == list(pairs)[:2]
    assert len(pairs.documents) == 2
    assert list(read_pairs(dataset, limit=1)) == list(pairs)[:1]


def test_pair_file_of_texts(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"query": "a?", "positive": "x", "negatives": ["y", {"title": "t", "text": "x"}]},
        {"query": "a?", "positive": {"title": "t", "text": "z"}},
        {"query": "b?", "positive": {"text": "x"}, "negatives": None},
        {"query": "c?", "positive": {"title": "t", "text": ""}},
    )
    pairs = read_pairs(path)
    assert [pair.query.text for pair in pairs] == ["a?", "a?", "b?", "c?"]
    assert [(d.title, d.text) for d in (p.positive for p in pairs)] == [
        ("", "x"), ("t", "z"), ("", "x"), ("t", "")
    ]  # fmt: skip
    assert [(d.title, d.text) for d in pairs[0].negatives] == [("", "y"), ("t", "x")]
    assert pairs[0].positive.doc_id == pairs[2].positive.doc_id
    assert pairs[0].query.query_id == pairs[1].query.query_id
    known = (pairs[0].positive.doc_id, pairs[1].positive.doc_id)
    assert pairs[0].positive_doc_ids == pairs[1].positive_doc_ids == known
    assert len(pairs.documents) == 5


def test_pair_file_of_document_ids(tmp_path, dataset):
    path = write(
        tmp_path / "p.jsonl",
        {"query": "a?", "positive": "d0", "negatives": ["d2", {"text": "other"}]},
    )
    (pair,) = read_pairs(path, dataset=dataset)
    assert pair.positive == document(0)
    assert pair.negatives[0] == document(2)
    assert pair.negatives[1].text == "other"


def test_written_pairs_read_back(tmp_path):
    pairs = read_pairs(
        write(
            tmp_path / "p.jsonl",
            {"query": "a?", "positive": "x", "negatives": ["y"]},
            {"query": "b?", "positive": {"title": "t", "text": "é"}},
        )
    )
    assert write_pairs(tmp_path / "again.jsonl.gz", pairs) == 2
    assert list(read_pairs(tmp_path / "again.jsonl.gz")) == list(pairs)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"positive": "x"}, r"p\.jsonl:2: field 'query' is missing"),
        ({"query": "", "positive": "x"}, r"p\.jsonl:2: field 'query' must not be empty"),
        ({"query": "a"}, r"p\.jsonl:2: field 'positive' is missing"),
        ({"query": "a", "positive": 3}, r":2: field 'positive' must hold a string or an object"),
        ({"query": "a", "positive": {"title": "t"}}, r":2: field 'text' is missing"),
        ({"query": "a", "positive": {"title": " ", "text": ""}}, r"2: field 'text' must not be"),
        ({"query": "a", "positive": ""}, r":2: field 'positive' must not be empty"),
        ({"query": "a", "positive": "x", "negatives": "y"}, r":2: field 'negatives' must be a l"),
        ({"query": "a", "positive": "x", "negatives": [None]}, r":2: field 'negatives' must hold"),
    ],
)
def test_bad_pair_is_named(tmp_path, record, message):
    path = write(tmp_path / "p.jsonl", {"query": "a", "positive": "x"}, record)
    with pytest.raises(DataError, match=message):
        read_pairs(path)


@pytest.mark.parametrize(
    ("record", "by_id"),
    [
        ({"settings": {"documents": "ids"}}, True),  # mined
        ({"settings": {"form": "pairs"}}, True),  # generated
        ({"settings": {"documents": "texts"}}, False),
        ({"settings": 3}, False),
        ([], False),
    ],
)
def test_ids_are_not_taken_for_texts(tmp_path, dataset, record, by_id):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"query": "which?", "positive": "d2"}\n')
    (tmp_path / "pairs.jsonl.json").write_text(json.dumps(record))
    if not by_id:
        assert read_pairs(pairs)[0].positive.text == "d2"
        return
    with pytest.raises(
        ConfigError, match=r"pairs\.jsonl names documents by their ids: `dataset` mus"
    ):
        read_pairs(pairs)
    assert read_pairs(pairs, dataset=dataset)[0].positive.doc_id == "d2"


def test_pairs_of_a_dataset_name_its_documents(dataset):
    folder = dataset / "pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"query": "which?", "positive": "d2"}\n')
    with pytest.raises(ConfigError, match=r"train\.jsonl names documents by their ids: `dataset`"):
        read_pairs(folder / "train.jsonl")


def test_unknown_ids_are_named(tmp_path, dataset):
    path = write(tmp_path / "p.jsonl", {"query": "a", "positive": "d0", "negatives": ["d9"]})
    with pytest.raises(DataError, match=r"p\.jsonl:1: must name documents of .*dataset\. .*'d9'"):
        read_pairs(path, dataset=dataset)
    pairs = list(read_pairs(dataset))
    file = dataset / "qrels" / "train.tsv"
    before = file.read_text()
    file.write_text(before + "q2\td9\t1\n")
    assert list(read_pairs(dataset)) == pairs  # a document elsewhere makes no pair
    file.write_text(before + "q9\td1\t1\n")
    rule = r"train\.tsv:6: query-id must be an id of the queries file\..*'q9'"
    with pytest.raises(DataError, match=rule):
        read_pairs(dataset)


TABLES = {
    "t.csv": "question,answer,negative\none?,text 1,\ntwo?,text 2,text 3\n",
    "t.tsv": "anchor\tpositive\tnegative\none?\ttext 1\t\ntwo?\ttext 2\ttext 3\n",
    "t.jsonl": '{"question": "one?", "answer": "text 1"}\n'
    '{"question": "two?", "answer": "text 2", "negative": "text 3"}\n',
    "t.json": '[{"query": "one?", "passage": "text 1", "negative": null},'
    ' {"query": "two?", "passage": "text 2", "negative": "text 3"}]',
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_table_is_read_as_convert_reads_it(tmp_path, name, packed):
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(TABLES[name].encode()) if packed else TABLES[name].encode())
    first, second = read_pairs(path)
    assert (first.query.text, first.positive.text, first.negatives) == ("one?", "text 1", ())
    assert (second.query.text, second.positive.text) == ("two?", "text 2")
    assert [document.text for document in second.negatives] == ["text 3"]
    assert len(read_pairs(path, limit=1)) == 1


@pytest.mark.parametrize(
    "field", [{"negative": "y"}, {"negative_1": "y"}, {"label": 0}, {"title": "T"}, {"doc_id": "7"}]
)
def test_a_table_of_json_lines_is_no_pair_file(tmp_path, field):
    """Both have `query` and `positive`; a pair file would leave the other column out."""
    lines = write(tmp_path / "t.jsonl", {"query": "a?", "positive": "x", **field})
    array = tmp_path / "t.json"
    array.write_text(json.dumps([{"query": "a?", "positive": "x", **field}]))
    if "label" in field:
        for path in (lines, array):
            with pytest.raises(DataError, match="must hold at least one pair"):
                read_pairs(path)
        return
    found = [list(read_pairs(path)) for path in (lines, array)]
    assert found[0] == found[1]
    ((pair,), _) = found
    assert bool(pair.negatives) == bool({"negative", "negative_1"} & set(field))


def test_a_pair_file_stays_one(tmp_path):
    fields = {"query_id": "q", "negatives": ["y"], "scores": {"positive": 1.0, "negatives": [0.5]}}
    path = write(tmp_path / "p.jsonl", {"query": "a?", "positive": "x", **fields})
    (pair,) = read_pairs(path)
    assert (pair.query.query_id, [d.text for d in pair.negatives]) == ("q", ["y"])


def test_columns_of_a_table_are_named_and_faults_have_their_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("ask,tell\none?,text 1\n,text 2\n")
    with pytest.raises(DataError, match=r"t.csv:1: no column holds the query: it must be called"):
        read_pairs(path)
    with pytest.raises(DataError, match=r"t.csv:3: field 'ask' must"):
        read_pairs(path, columns=["query=ask", "document=tell"])
    path.write_text("ask,tell\none?,text 1\n")
    (pair,) = read_pairs(path, columns={"query": "ask", "document": "tell"})
    assert pair.positive.text == "text 1"
    with pytest.raises(ConfigError, match="`dataset` must be left out beside a table"):
        read_pairs(path, columns={"query": "ask", "document": "tell"}, dataset=tmp_path)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"save a spreadsheet as CSV. Received: 't.xlsx'"):
        read_pairs(tmp_path / "t.xlsx")


def test_a_split_of_what_has_none_is_refused(tmp_path):
    path = write(tmp_path / "pairs.jsonl", {"query": "one?", "positive": "text 1"})
    for given in (path, [("one?", "text 1")]):
        with pytest.raises(ConfigError, match=r"`split` must be left out .*Received: 'dev'"):
            read_pairs(given, split="dev")


def test_nothing_to_read_is_said(tmp_path, dataset):
    with pytest.raises(ConfigError, match=r"nowhere: a dataset directory, a pair file or a ta"):
        read_pairs(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"p\.jsonl: must hold at least one pair"):
        read_pairs(write(tmp_path / "p.jsonl"))
    with pytest.raises(ConfigError, match=r"`limit` must be at least 1\. Received: 0"):
        read_pairs(dataset, limit=0)
    with pytest.raises(ConfigError, match="`dataset` goes with a pair file"):
        read_pairs(dataset, dataset=dataset)
    with pytest.raises(ConfigError, match=r"`split` must be one of its splits: train"):
        read_pairs(dataset, split="dev")
    (dataset / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\n")
    with pytest.raises(DataError, match=r"split 'train' must have at least one judgement above 0"):
        read_pairs(dataset)


def test_a_query_with_many_positives_costs_no_other_query_memory():
    ids = [f"d{i}" for i in range(1000)]
    popular = Pair(Query("q0", "?"), document(0), positive_doc_ids=tuple(ids))
    others = [Pair(Query(f"q{i}", "?"), document(i)) for i in range(1, 500)]
    table = PairTable([popular, *others])
    assert table.known_keys.nbytes == 8 * (1000 + 499)
    known = table.known_positives(np.array([3, 0]))
    assert known.shape == (2, 1024)  # a power of two: XLA compiles for each width
    assert known[0].tolist() == [document_key(document(3))] + [0] * 1023
    assert set(known[1].tolist()) == {0} | {document_key(document(i)) for i in range(500)} | {
        key_of(f"d{i}") for i in range(500, 1000)
    }
    assert table.known_positives(np.array([3, 4])).tolist() == [
        [document_key(document(3))],
        [document_key(document(4))],
    ]


def test_one_id_for_two_texts_is_refused():
    query = Query("q", "?")
    with pytest.raises(ConfigError, match="document id 'd1' must stand for one document"):
        PairTable([Pair(query, document(1)), Pair(query, Document("d1", "", "other"))])
    with pytest.raises(ConfigError, match="query id 'q' must stand for one text"):
        PairTable([Pair(query, document(1)), Pair(Query("q", "!"), document(1))])
    with pytest.raises(IndexError, match=r"`index` must be in \[0, 1\)"):
        PairTable([Pair(query, document(1))])[1]


def test_query_ids_tell_equal_texts_apart(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"query": "a?", "query_id": "q1", "positive": "x", "scores": {"positive": 1.5}},
        {"query": "a?", "query_id": "q2", "positive": "y"},
        {"query": "a?", "query_id": None, "positive": "z"},
        {"query": "a?", "query_id": "q1", "positive": "z"},
    )
    pairs = read_pairs(path)
    assert [pair.query.query_id for pair in pairs][:2] == ["q1", "q2"]
    assert len(pairs.queries) == 3
    x, y, z = (document.doc_id for document in pairs.documents)
    assert [pair.positive_doc_ids for pair in pairs] == [(x, z), (y,), (z,), (x, z)]
    for odd, message in ((7, "field 'query_id' must be a string"), ("a b", "must not hold white")):
        write(path, {"query": "a?", "query_id": odd, "positive": "x"})
        with pytest.raises(DataError, match=message):
            read_pairs(path)


def test_scores_of_a_cross_encoder_are_margins(tmp_path):
    path = tmp_path / "pairs.jsonl"
    line = {"query": "q", "positive": "a", "negatives": ["b", "c"]}
    scored = {**line, "cross_scores": {"positive": 2.0, "negatives": [1.5, -3]}}
    path.write_text("".join(f"{json.dumps(x)}\n" for x in (scored, {**line, "query": "r"})))
    found = read_pairs(path)
    assert [pair.margins for pair in found] == [(0.5, 5.0), ()]
    for wrong in ({"positive": 1.0}, {"positive": 1.0, "negatives": [1.0]}, [1.0, 2.0, 3.0]):
        path.write_text(json.dumps({**line, "cross_scores": wrong}) + "\n")
        with pytest.raises(DataError, match=r"pairs\.jsonl:1: field 'cross_scores' must have"):
            read_pairs(path)
