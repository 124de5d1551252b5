import gzip
import json

import pytest

from tfde.errors import DataError
from tfde.storage.json_lines import id_field, read_json_lines, string_field, write_json_lines


def test_reads_plain_and_packed_alike(tmp_path):
    content = '{"a": 1}\n\n{"a": "é 汉"}\r\n{"a": null}'.encode()
    (tmp_path / "x.jsonl").write_bytes(content)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    expected = [(1, {"a": 1}), (3, {"a": "é 汉"}), (4, {"a": None})]
    assert list(read_json_lines(tmp_path / "x.jsonl")) == expected
    assert list(read_json_lines(tmp_path / "x.jsonl.gz")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": \n', r"x\.jsonl:2: must be JSON \(.*\)\. Received: '\{\"a\": '"),
        (b'{"a": 1}\n[1]\n', r"x\.jsonl:2: must be a JSON object\. Received: \[1\]"),
        (b'{"a": "caf\xe9"}\n', r"x\.jsonl:1: must be UTF-8 \(byte 10 of the line is not\)"),
        (b'{"a": ' + b"7" * 5000 + b"}", r"x\.jsonl:1: must be JSON \(a number is too long\)"),
        (b"[" * 100_000, r"x\.jsonl:1: must be JSON \(nested too deep\)"),
    ],
)
def test_bad_line_is_named(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_json_lines(path))
    assert "\n" not in str(caught.value)


def test_truncated_and_damaged_gzip_are_named(tmp_path):
    whole = gzip.compress(b"".join(b'{"a": "%d"}\n' % (i * 7919) for i in range(5000)))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:\d+: the gzip stream must be whole"):
        list(read_json_lines(path))
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:1: the gzip stream must be whole"):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"b": 1}, r"f:3: field 'a' is missing\. Received: \{'b': 1\}"),
        ({"a": 7}, r"f:3: field 'a' must be a string\. Received: 7"),
        ({"a": None}, r"f:3: field 'a' must be a string; it is null, so leave the record out\."),
        ({"a": " \t"}, r"f:3: field 'a' must not be empty\."),
        (json.loads('{"a": "x\\ud800"}'), r"f:3: field 'a' must be Unicode text"),
    ],
)
def test_bad_text_is_named(record, message):
    with pytest.raises(DataError, match=message):
        string_field("f", 3, record, "a")


def test_optional_text_may_be_absent_null_or_empty():
    for record in ({}, {"a": None}, {"a": ""}):
        assert string_field("f", 1, record, "a", optional=True) == ""


@pytest.mark.parametrize("value", ["a b", " a", "a\n", "a\u2028b", "a\x85b", "a\u00a0b"])
def test_white_space_in_an_id_is_refused(value):
    with pytest.raises(DataError, match=r"f:2: field '_id' must not hold white space"):
        id_field("f", 2, {"_id": value}, "_id")


def test_equal_records_give_equal_bytes_and_come_back(tmp_path):
    records = [{"text": "é 汉"}, {"text": "b"}]
    assert write_json_lines(tmp_path / "a.jsonl.gz", records) == 2
    write_json_lines(tmp_path / "b.jsonl.gz", records)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert [record for _, record in read_json_lines(tmp_path / "a.jsonl.gz")] == records
