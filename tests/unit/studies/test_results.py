"""Results survive a kill in the middle of a line."""

import pytest

from tfde.errors import DataError
from tfde.studies.results import append_result, read_results

FIRST = {"axes": {"a": "x"}, "seed": 1, "hash": "h", "measures": {"R@1": 0.1 + 0.2}, "seconds": {}}
SECOND = {**FIRST, "seed": 2}


def test_a_line_that_was_cut_is_passed_over_and_replaced(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    append_result(path, FIRST)
    whole = path.read_bytes()
    append_result(path, SECOND)
    both = path.read_bytes()
    for cut in range(len(whole), len(both)):
        path.write_bytes(both[:cut])
        assert read_results(path) == [FIRST]
    append_result(path, SECOND)
    assert path.read_bytes() == both
    assert read_results(path) == [FIRST, SECOND]  # 0.30000000000000004 in full


@pytest.mark.parametrize("line", ["{", "[]", '{"axes": {}, "seed": 1}', "\udcff"])
def test_another_bad_line_is_named(tmp_path, line):
    path = tmp_path / "results.jsonl"
    append_result(path, FIRST)
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=r"results\.jsonl:2: must be a record with axes, seed, "):
        read_results(path)
