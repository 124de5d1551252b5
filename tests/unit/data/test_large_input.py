"""One line, one element or one file of any length: told in one line, in bounded memory."""

import gzip
import json

import pytest
import zstandard

from tfde.data.formats import json_array
from tfde.data.formats.json_array import read_json_array
from tfde.errors import DataError
from tfde.storage import compressed
from tfde.storage.compressed import raw_lines
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines

MIB = 1 << 20
PACK = {".jsonl": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("suffix", PACK)
def test_a_line_without_end_is_one_bad_line(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    long = b'{"a": "' + b"x" * (65 * MIB)
    path.write_bytes(PACK[suffix](b'{"a": 1}\n' + long + b'"}\n{"a": 3}\n' + long))
    with pytest.raises(DataError, match=rf"x{suffix}:2: a line must be at most 64 MiB. Received: "):
        list(read_json_lines(path))
    intake = Intake(skip_bad=True)
    assert [line for line, _ in read_json_lines(path, intake)] == [1, 3]
    assert intake.skipped == 2


def test_lines_of_just_the_length_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "MAX_LINE_BYTES", 8)
    path = tmp_path / "x"
    path.write_bytes(b"1234567\n12345678\n123456789\n1234567\n12345678")
    intake = Intake(skip_bad=True)
    assert [number for number, _ in raw_lines(path, intake)] == [1, 4, 5]
    assert intake.skipped == 2


def test_an_element_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "MAX_LINE_BYTES", MIB)
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"a": 1}, {"a": "x" * (3 * MIB)}]))
    with pytest.raises(DataError, match=r"x.json:1: an element must be at most 1 MiB\. Received"):
        list(read_json_array(path, Intake()))


def test_a_file_that_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "MAX_FILE_BYTES", MIB)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(bytes(MIB)))
    assert compressed.read_whole(path) == bytes(MIB)
    path.write_bytes(gzip.compress(bytes(MIB + 1)))
    with pytest.raises(DataError, match=r"x.json.gz: a file of this format must be at most 1 MiB"):
        compressed.read_whole(path)
