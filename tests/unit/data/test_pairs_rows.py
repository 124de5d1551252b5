"""Training pairs that are in memory: lists, mappings, pandas frames."""

import json

import numpy as np
import pandas
import pytest

from tfde.data.pairs.dataset import pairs
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Pair, Query


def texts(table):
    return [
        (p.query.text, p.positive.title, p.positive.text, [n.text for n in p.negatives])
        for p in table
    ]


def test_tuples():
    rows = [("q", "a"), ["q", "b", "n", "m"], ("r", "a", None)]
    table = read_pairs(rows)
    assert texts(table) == [("q", "", "a", []), ("q", "", "b", ["n", "m"]), ("r", "", "a", [])]
    # Both positives of a query are known as such.
    batch = pairs(rows, batch_size=3, shuffle=False).batch(0)
    assert [len(set(row) - {0}) for row in batch["positive_keys"].tolist()] == [2, 2, 1]
    assert texts(read_pairs(iter(rows), limit=1)) == [("q", "", "a", [])]


def test_pairs_of_ours_are_taken_as_they_are():
    pair = Pair(Query("1", "q"), Document("2", "t", "a"), (), ("2", "3"))
    (found,) = read_pairs([pair])
    assert found.positive == pair.positive
    assert found.query == pair.query


ROWS = [
    {"question": "q", "title": "T", "answer": ["a", "b"], "label": [1, 0], "source": "x"},
    {"question": "r", "title": None, "answer": "c", "label": 1.0, "source": None},
]


def test_mappings(caplog):
    caplog.set_level("INFO", "tfde")
    assert texts(read_pairs(ROWS)) == [("q", "T", "a", []), ("r", "", "c", [])]
    assert caplog.messages == [
        "pairs: query from 'question'; document from 'answer'; title from 'title'; label from"
        " 'label'; metadata of documents from 'source'",
        "pairs: left out: 1 documents labelled 0",
    ]


def test_frames_are_what_the_same_file_is(tmp_path):
    frame = pandas.DataFrame(
        {
            "nr": [7, 8],
            "Frage": ["q", "r"],
            "Antwort": ["a", "b"],
            "title": ["T", None],
            "gut": [2, 1],
            "when": pandas.to_datetime(["2024-01-02", None]),
        }
    )
    columns = ["query=Frage", "document=Antwort", "query_id=nr", "label=gut"]
    table = read_pairs(frame, columns=columns)
    assert texts(table) == [("q", "T", "a", []), ("r", "", "b", [])]
    assert [pair.query.query_id for pair in table] == ["7", "8"]
    assert table[0].positive.metadata == {"when": "2024-01-02 00:00:00"}
    assert table[1].positive.metadata == {"when": None}
    # As the pair file that says the same.
    lines = [
        {"query": "q", "positive": {"title": "T", "text": "a"}},
        {"query": "r", "positive": "b"},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert texts(read_pairs(path)) == texts(table)


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([], {}, ConfigError, "there must be at least one pair. Received: none"),
        (3, {}, ConfigError, r"`path` must be a dataset directory, .* a frame. Received: 3"),
        ({"a": 1}, {}, ConfigError, r"or a frame \(of several .* of 'a'\). Received: {'a': 1}"),
        ([("q", "a"), "qa"], {}, DataError, r"pairs:2: a pair must be \(query, document, neg"),
        ([("q", "a"), ("q", 3)], {}, DataError, r"pairs:2: field 'document' must be a string"),
        ([{"q": "x", "a": "y"}], {}, DataError, r"pairs:1: no column holds the query: it must"),
        ([("q", "a")], {"dataset": "d"}, ConfigError, r"`dataset` must be left out where pairs"),
        ("nowhere", {"columns": ["query=q"]}, ConfigError, r"a pair file or a table must stand he"),
    ],
)
def test_what_is_no_pair(rows, options, error, message):
    with pytest.raises(error, match=message):
        read_pairs(rows, **options)


def test_columns_by_name():
    columns = {"anchor": ["q", "r"], "positive": np.array([b"a", b"b"]), "negative": ["n", None]}
    table = read_pairs(columns)
    assert texts(table) == [("q", "", "a", ["n"]), ("r", "", "b", [])]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert texts(read_pairs(rows)) == texts(table)
    with pytest.raises(ConfigError, match="of columns of one length"):
        read_pairs({**columns, "negative": ["n"]})
