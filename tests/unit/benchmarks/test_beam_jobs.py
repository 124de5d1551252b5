"""The benchmark of Beam jobs runs, on a few pages."""

import pytest
import tiny
from benchmark_script import run_benchmark

from tfde.data.pages import Page, Section, write_pages


@pytest.mark.slow
def test_command_and_job_are_compared(tmp_path):
    section = Section("", ("One. Two.", "Three. Four."))
    pages = [Page(f"p{n}", f"P{n}", (section,), (f"p{(n + 1) % 9}",)) for n in range(9)]
    write_pages(tmp_path / "pages.jsonl", pages)
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    data = tiny.write_dataset(tmp_path / "data", documents=30)
    result = run_benchmark(
        "beam_jobs.py", "--pages", tmp_path / "pages.jsonl", "--pairs", 20, "--corpus", data,
        "--model", tmp_path / "model", "--documents", 10, "--jobs", "make_pairs",
    )  # fmt: skip
    (row,) = result["jobs"]
    assert row["job"] == "make_pairs"
    assert all(row["seconds"][side] > 0 for side in ("command", "one process", "two workers"))
    assert row["same_as_command"]
    assert row["same_with_one_process"]
