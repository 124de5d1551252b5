import json

from tfde.evaluation.report import Row, format_json, format_table
from tfde.text.cut_texts import CutTexts

ROWS = [
    Row("BM25", {"P@1": 0.65771, "RR": 1.0}, 2.04, [CutTexts("queries", 8, 3, 1, 9, 2)]),
    Row("long/name", {"P@1": 0.0, "RR": 0.5}, None),
]


def test_the_table_is_aligned_markdown():
    assert format_table(ROWS) == (
        "| system    |    P@1 |     RR | seconds |\n"
        "|-----------|-------:|-------:|--------:|\n"
        "| BM25      | 0.6577 | 1.0000 |     2.0 |\n"
        "| long/name | 0.0000 | 0.5000 |       - |"
    )


def test_a_name_is_no_markup():
    first = format_table([Row("a|b", {"RR": 0.5}, 1.0)]).splitlines()[2]
    assert first == r"| a\|b   | 0.5000 |     1.0 |"


def test_json_is_unrounded():
    value = json.loads(format_json(ROWS, split="test"))
    assert value["split"] == "test"
    assert value["rows"][0] == {
        "name": "BM25",
        "measures": {"P@1": 0.65771, "RR": 1.0},
        "seconds": 2.04,
        "cut": [
            {
                "kind": "queries",
                "max_length_tokens": 8,
                "texts": 3,
                "cut": 1,
                "tokens": 9,
                "lost": 2,
            }
        ],
    }
    assert value["rows"][1]["cut"] == []
    assert value["rows"][1]["seconds"] is None
