"""The benchmark of pair making runs, on a few pages."""

import pytest
from benchmark_script import run_benchmark

from tfde.data.pages import Page, Section, write_pages


@pytest.mark.slow
def test_one_and_two_workers_make_the_same_number_of_pairs(tmp_path):
    section = Section("", ("One. Two.", "Three. Four."))
    pages = [Page(f"p{n}", f"P{n}", (section,), (f"p{(n + 1) % 9}",)) for n in range(9)]
    file = tmp_path / "pages.jsonl"
    write_pages(file, pages)
    result = run_benchmark("pair_making.py", "--pages", file, "--copies", 1, 2)
    assert [(run["copies"], run["workers"]) for run in result["runs"]] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert [run["pages"] for run in result["runs"]] == [9, 9, 18, 18]
    assert [run["pairs"] for run in result["runs"]] == [54, 54, 108, 108]
    assert all(run["peak_bytes"] > 0 for run in result["runs"])
    assert result["versions"]["sentencex"]
