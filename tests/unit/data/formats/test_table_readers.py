"""Tables of pairs and of labelled pairs, as people have them, and what they become."""

import csv
import datetime
import decimal
import json
import sys
import uuid

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from tfde.data.formats import (
    columns,
    labelled_pairs,
)
from tfde.data.formats.csv_rows import json_cell
from tfde.data.formats.records import Judgement, LabelledPair, Source, TrainingPair
from tfde.data.ids import id_of_text
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import write_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query


def read(module, *sources, **options):
    return list(module.read(sources, Intake(), **options))


def of_kind(records, kind):
    return [record for record in records if isinstance(record, kind)]


ROWS = [
    {"anchor": "a1", "positive": "p1", "negative_1": "n1", "negative_2": "n2"},
    {"anchor": 'a "2"\n', "positive": "p1, é", "negative_1": "", "negative_2": "n1"},
]


def write_rows(path, kind):
    if kind == "jsonl":
        write_lines(path, map(json.dumps, ROWS))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(ROWS[0]), delimiter="," if kind == "csv" else "\t")
            table.writeheader()
            table.writerows(ROWS)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_columns_are_the_same_in_every_kind_of_table(tmp_path, kind):
    write_rows(tmp_path / f"rows.{kind}", kind)
    records = read(columns, Source("rows", tmp_path / f"rows.{kind}", "train"))
    texts = {record.doc_id: record.text for record in of_kind(records, Document)}
    assert list(texts.values()) == ["p1", "n1", "n2", "p1, é"]
    assert [
        (pair.query.text, texts[pair.positive], [texts[n] for n in pair.negatives])
        for pair in of_kind(records, TrainingPair)
    ] == [("a1", "p1", ["n1", "n2"]), ('a "2"\n', "p1, é", ["n1"])]
    assert len(of_kind(records, Judgement)) == 2


def test_columns_that_are_named(tmp_path):
    (tmp_path / "my.csv").write_text('Question,Id,Answer\n"a\nb",1,c\n', "utf-8")
    source = Source("rows", tmp_path / "my.csv", "train")
    records = read(columns, source, columns=["Question", "Answer"])
    assert [record.text for record in of_kind(records, Query)] == ["a\nb"]
    assert [record.text for record in of_kind(records, Document)] == ["c"]
    with pytest.raises(DataError, match=r"csv:1: no column is called 'question', which .*: 'Q"):
        read(columns, source, columns=["question", "Answer"])
    with pytest.raises(ConfigError, match="`columns` must be KIND=NAME, or query's and document's"):
        read(columns, source, columns=["Question"])


def test_columns_by_other_names_and_lists(tmp_path):
    rows = [{"query": "q", "answer": "a", "negatives": ["x", "y"], "score": 3}]
    write_lines(tmp_path / "rows.jsonl", map(json.dumps, rows))
    records = read(columns, Source("rows", tmp_path / "rows.jsonl", "train"))
    assert [record.text for record in of_kind(records, Document)] == ["a", "x", "y"]


def test_lists_and_names_as_pandas_and_people_write_them(tmp_path):
    import pandas

    frame = pandas.DataFrame({"question": ["q"], " answer": [["it's", "two"]]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    records = read(columns, Source("rows", tmp_path / "rows.csv", "train"))
    assert [record.text for record in of_kind(records, Document)] == ["it's", "two"]
    (tmp_path / "rows.csv").write_text("question,answer\nq,['a' 'b']\n", "utf-8")
    records = read(columns, Source("rows", tmp_path / "rows.csv", "train"))
    assert [record.text for record in of_kind(records, Document)] == ["['a' 'b']"]


def test_a_damaged_parquet_file_is_named(tmp_path):
    from tfde.errors import DataError

    write_rows(tmp_path / "rows.parquet", "parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"rows\.parquet: must be a whole parquet file \("
    ) as caught:
        read(columns, Source("rows", tmp_path / "rows.parquet", "train"))
    assert "\n" not in str(caught.value)


GLUE = {
    "MRPC": 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tHe "said so.\tThey did.\n',
    "RTE": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n",
    "QNLI": "index\tquestion\tsentence\tlabel\n0\tA\tB\tnot_entailment\n",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    "\tscore\n0\tmain\tMSR\t2012\t1\tnone\tnone\tA\tB\t5.000\n",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA\tB\t0\n",
    "MNLI": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse"
    "\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label"
    "\n0\t31\t31n\tx\t( A )\t( B )\t(A)\t(B)\tA\tB\tentailment\tneutral\n",
}
EXPECTED = {
    "MRPC": ('He "said so.', "They did.", "1"),
    "RTE": ("A", "B", "entailment"),
    "QNLI": ("A", "B", "not_entailment"),
    "STS-B": ("A", "B", "5.000"),
    "QQP": ("A", "B", "0"),
    "MNLI": ("A", "B", "neutral"),
}


@pytest.mark.parametrize("name", GLUE)
def test_columns_of_glue(tmp_path, name):
    (tmp_path / "rows.tsv").write_text("\ufeff" + GLUE[name], encoding="utf-8")
    (pair,) = read(labelled_pairs, Source("rows", tmp_path / "rows.tsv", "dev"))
    assert pair == LabelledPair("dev", *EXPECTED[name])


TABLES = {
    # sentence-transformers' pairs with a class: 0 is judged, and not relevant.
    "question,answer,label\nq,a,1\nq,b,0\n": [("q", "", "a", 1), ("q", "", "b", 0)],
    "Query,Passage,Score\nq,a,2.0\nq,b,0.0\n": [("q", "", "a", 2), ("q", "", "b", 0)],
    'question,title,answer\nq,T,a\nq,T,"[""b"", ""c""]"\n': [
        ("q", "T", "a", 1),
        ("q", "T", "b", 1),
        ("q", "T", "c", 1),
    ],
    'anchor,positive,labels\nq,"[""a"", ""b""]","[1, 0]"\n': [("q", "", "a", 1), ("q", "", "b", 0)],
    # As spreadsheets of other countries save them, and what else stands between cells.
    'question;answer\nq;a, b\nq;"c; d"\n': [("q", "", "a, b", 1), ("q", "", "c; d", 1)],
    "question\tanswer\nq\ta\n": [("q", "", "a", 1)],
    "question|answer\nq|a;b\n": [("q", "", "a;b", 1)],
    "sep=;\r\nquestion;answer\r\nq;a, b\r\n": [("q", "", "a, b", 1)],
    '\ufeffsep=|\nquestion|answer\nq|"a\nb"\n': [("q", "", "a\nb", 1)],
    "question;answer;who, when\nq;a, b;x\n": [("q", "", "a, b", 1)],
    "question,answer\nq,a\n,\n": [("q", "", "a", 1)],
    '"question;x",answer,question\nz,a,q\n': [("q", "", "a", 1)],
    "question,answer,source\nq,[1] says so,x\n": [("q", "", "[1] says so", 1)],
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_as_people_have_them(tmp_path, table):
    (tmp_path / "my.csv").write_text(table)
    records = read(columns, Source("rows", tmp_path / "my.csv", "train"))
    texts = {record[0]: record for record in records if isinstance(record, Document | Query)}
    judged = [
        (texts[r.query_id].text, texts[r.doc_id].title, texts[r.doc_id].text, r.relevance)
        for r in of_kind(records, Judgement)
    ]
    assert judged == TABLES[table]


def test_every_kind_of_column_can_be_named(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("nr,Frage,Kopf,Antwort,key,gut,x\n7,q,T,a,d-1,3,-\n8,r,T,a,d-1,0,-\n")
    given = ["query=Frage", "document=Antwort", "title=Kopf", "id=key", "query_id=nr", "label=gut"]
    records = read(columns, Source("rows", path, "train"), columns=given)
    assert records == [
        Document("d-1", "T", "a", {"x": "-"}),
        Query("7", "q"),
        Judgement("train", "7", "d-1", 3),
        Query("8", "r"),
        Judgement("train", "8", "d-1", 0),
    ]
    assert columns.understood(Source("rows", path), given) == (
        "query from 'Frage'; document from 'Antwort'; title from 'Kopf'; id from 'key';"
        " query_id from 'nr'; label from 'gut'; metadata of documents from 'x'"
    )


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        ("query,answer,score\nq,a,0.83\n", None, r"my\.csv:2: column 'score' must hold grades: 0"),
        (
            "query,answer,label\nq,a,-1\n",
            None,
            r"my\.csv:2: column 'label' must hold grades: .* '-1'",
        ),
        ("query,answer,label\nq,a,693\n", None, r"must hold grades: 0 .* 100 \(.* '693'"),
        ("query,answer,label\nq,a,\n", None, r"my\.csv:2: column 'label' must hold grades"),
        ('query,answer,label\nq,a,"[1, 0]"\n', None, r"a label for each of the 1 documents"),
        (
            "query,answer,doc_id\nq,a,1\nq,b,1\n",
            None,
            r"my\.csv:3: an id must stand for one text.*'1'",
        ),
        (
            "query,answer\nq,a\n",
            ["query=Q"],
            r"my\.csv:1: no column is called 'Q', which `columns` names for the query",
        ),
        (
            "positive,negative\nx,y\n",
            None,
            r"my\.csv:1: no column holds the query: it must be called anchor, query or question,"
            r" or be named by `columns` .*: query=NAME\. Received: 'positive, negative'",
        ),
        (
            "frage,antwort\nq,a\n",
            ["question=frage", "answer=antwort"],
            r"`columns` must be KIND=NAME with a kind of query, do.*: 'question=frage'",
        ),
        (
            "query,answer\nq,a\n",
            ["query=query", "doc=answer"],
            r"KIND=NAME with a kind of query, do",
        ),
    ],
)
def test_tables_that_cannot_be_meant(tmp_path, table, given, message):
    (tmp_path / "my.csv").write_text(table)
    with pytest.raises((DataError, ConfigError), match=message):
        read(columns, Source("rows", tmp_path / "my.csv", "train"), columns=given)


def test_a_header_that_lacks_a_column_is_no_bad_row(tmp_path):
    (tmp_path / "my.csv").write_text("frage,antwort\nq,a\nr,b\n")
    intake = Intake(skip_bad=True)
    with pytest.raises(DataError, match=r"my\.csv:1: no column holds the query"):
        list(columns.read([Source("rows", tmp_path / "my.csv", "train")], intake))
    assert (intake.skipped, intake.stopped_by) == (0, None)


def test_scores_that_are_no_grades_can_be_left_alone(tmp_path):
    (tmp_path / "my.csv").write_text("query,answer,score\nq,a,0.83\n")
    source = Source("rows", tmp_path / "my.csv", "train")
    (judgement,) = of_kind(read(columns, source, columns=["label="]), Judgement)
    assert judgement.relevance == 1


def test_rows_that_were_there_before_are_counted_and_others_are_not(tmp_path):
    table = tmp_path / "t.jsonl"
    rows = [{"question": "a", "answer": "x"}, {"question": "a", "answer": "y"}]
    rows += [
        {"question": "a", "answer": "x", "kind": "told again"},
        {"question": "b", "answer": "x"},
    ]
    triplets = [{**rows[0], "negative": f"n{number}"} for number in (1, 2, 1)]
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *triplets]))
    intake = Intake()
    records = list(columns.read([Source("rows", table, "train")], intake))
    assert intake.left_out == {"rows that were there before": 1}
    assert sum(isinstance(record, TrainingPair) for record in records) == 3
    assert sum(isinstance(record, Judgement) for record in records) == 3


def test_metadata_that_a_document_cannot_keep_is_counted(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("question,answer,negative,topic\na,x,y,1\nb,x,,2\nc,x,,1\nd,y,,3\ne,z,,4\n")
    intake = Intake()
    records = columns.read([Source("rows", table, "train")], intake)
    found = {one.doc_id: one.metadata for one in records if isinstance(one, Document)}
    assert [dict(metadata or {}) for metadata in found.values()] == [
        {"topic": "1"},
        {},
        {"topic": "4"},
    ]
    assert intake.left_out == {"other metadata of documents that were there before": 2}


def test_a_byte_that_is_no_utf8_costs_its_row_once(tmp_path):
    """Wherever it stands in a row of several lines."""
    path = tmp_path / "train.csv"
    path.write_bytes(
        b'question,answer\na,"one\nsec\x92ond\nthi\x92rd"\nb,two\nc\x92,three\nd,"four\nlines"\n'
        b'e,"five\n\x92 never closed\nf,six\n'
    )
    source = Source("rows", path, "train")
    with pytest.raises(DataError, match=r"train\.csv:3: must be UTF-8 \(byte 3 .*`iconv -f WIN"):
        list(columns.read([source], Intake()))
    intake = Intake(skip_bad=True)
    records = list(columns.read([source], intake))
    texts = [record.text for record in records if isinstance(record, Document)]
    assert texts == ["two", "four\nlines", "six"]
    assert intake.skipped == 4  # a, c, what e begins, and the line behind it


def test_a_cell_without_id_gets_one_and_numbers_are_ids(tmp_path):
    rows = [{"question": "a", "answer": "x", "doc_id": 7.0}]
    rows += [{"question": "b", "answer": "y", "doc_id": None}]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    records = list(columns.read([Source("rows", path, "train")], Intake()))
    ids = [record.doc_id for record in records if isinstance(record, Document)]
    assert ids == ["7", id_of_text("y")]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("é".encode(), "é"),
        (("x", b"y"), ["x", "y"]),
        (np.array(["x", "y"]), ["x", "y"]),
        (np.array([b"x"], object), ["x"]),
        ({"a": (1, float("nan"))}, {"a": [1, None]}),
        (np.float32("inf"), None),
        (np.int64(3), 3),
        (datetime.date(2020, 1, 2), "2020-01-02"),
        (np.datetime64("2020-01-02"), "2020-01-02"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"\xff", b"\xff"),
        ({"x"}, {"x"}),
        (pandas.Timestamp("2020-01-02 03:04"), "2020-01-02 03:04:00"),
        (pandas.Period("2020-01"), "2020-01"),
        (datetime.timedelta(hours=1), "1:00:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pandas.NaT, None),
        (pandas.NA, pandas.NA),
    ],
)
def test_cells_as_json_has_them(cell, expected):
    found = json_cell(cell)
    assert found is expected or found == expected
    assert type(found) is type(expected)


def test_what_is_no_text_is_no_pair():
    for cell in (b"\xff", {"x"}, frozenset("x"), object()):
        frame = pandas.DataFrame({"question": ["a"], "answer": [cell]})
        for rows in (frame, frame.to_dict("records")):
            with pytest.raises(DataError, match="pairs:1: field 'answer' must be a string"):
                read_pairs(rows)
    with pytest.raises(DataError, match="pairs:1: field 'answer' must be a string"):
        read_pairs([{"question": "a", "answer": pandas.NA}])
    frame = pandas.DataFrame({"question": ["a", "b"], "answer": [("x", "y"), ("z",)]})
    assert [pair.positive.text for pair in read_pairs(frame)] == ["x", "y", "z"]


def test_bytes_of_a_parquet_column_are_texts(tmp_path):
    cells = pyarrow.array(["x é".encode(), b"y"], pyarrow.binary())
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": cells}), path)
    records = list(columns.read([Source("rows", path, "train")], Intake()))
    assert [one.text for one in records if isinstance(one, Document)] == ["x é", "y"]


def test_rows_without_any_cell_are_counted(tmp_path):
    (tmp_path / "my.csv").write_text("question,answer\nq,a\n,\n,\n")
    intake = Intake()
    records = list(columns.read([Source("rows", tmp_path / "my.csv", "train")], intake))
    assert len(of_kind(records, Document)) == 1
    assert intake.left_out == {"blank rows": 2}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_one_name_are_refused(tmp_path, kind):
    table = pyarrow.table([["q"], ["a"], ["b"]], names=["question", "answer", "answer"])
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    with pytest.raises(DataError, match=r"columns must have different names.*'answer'"):
        read(columns, Source("rows", path, "train"))


def test_nanoseconds_need_no_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    times = pyarrow.array([1_700_000_000_123_456_789, 1_700_000_000_000_000_000])
    columns_of = {"question": ["a", "b"], "answer": ["x", "y"]}
    table = pyarrow.table({**columns_of, "when": times.cast(pyarrow.timestamp("ns"))})
    parquet.write_table(table, tmp_path / "rows.parquet")
    records = read(columns, Source("rows", tmp_path / "rows.parquet", "train"))
    found = [record.metadata["when"] for record in of_kind(records, Document)]
    assert found == ["2023-11-14 22:13:20.123456789", "2023-11-14 22:13:20.000000000"]


def test_a_negative_is_the_document_that_has_its_text(tmp_path):
    """A row gives title and id of its positive alone; the text would be a second document."""
    path = tmp_path / "t.csv"
    path.write_text(
        "query,doc_id,title,positive,negative\na?,1,X's,x,y\nb?,2,Y's,y,x\nc?,2,Y's,y,other\n"
    )
    records = read(columns, Source("rows", path, "train"))
    documents = {d.doc_id: d.title for d in of_kind(records, Document)}
    assert documents == {"1": "X's", "2": "Y's", id_of_text("other"): ""}
    pairs = of_kind(records, TrainingPair)
    assert [pair.negatives for pair in pairs] == [("2",), ("1",), (id_of_text("other"),)]
    first, *_ = read_pairs(path)
    assert [(d.doc_id, d.title) for d in first.negatives] == [("2", "Y's")]
    # A text of two documents is neither's.
    path.write_text("query,doc_id,positive,negative\na?,1,x,z\nb?,2,x,z\nc?,3,w,x\n")
    *_, last = of_kind(read(columns, Source("rows", path, "train")), TrainingPair)
    assert last.negatives == (id_of_text("x"),)


def test_answers_of_two_contexts_are_two_documents(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"question": f"{c}?", "answer": "yes", "context": c} for c in "pq"]
    write_lines(path, map(json.dumps, rows))
    for found in (read_pairs(path), read_pairs(rows)):
        ids = {pair.positive.doc_id: pair.positive.context for pair in found}
        assert sorted(ids.values()) == ["p", "q"]
    judged = of_kind(read(columns, Source("rows", path, "train")), Judgement)
    assert len({judgement.doc_id for judgement in judged}) == 2
