"""The benchmark of pair making runs, on a few pages."""

import json
import subprocess
import sys
from pathlib import Path

from tfde.data.pages import Page, Section, write_pages

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "pair_making.py"


def test_one_and_two_workers_make_the_same_number_of_pairs(tmp_path):
    section = Section("", ("One. Two.", "Three. Four."))
    pages = [Page(f"p{n}", f"P{n}", (section,), (f"p{(n + 1) % 9}",)) for n in range(9)]
    write_pages(tmp_path / "pages.jsonl", pages)
    # `machine` asks the peers' environment for versions; this one will do.
    code = (
        "import pathlib, runpy, sys; sys.path.insert(0, sys.argv[1]); import side_by_side;"
        "side_by_side.PEERS_PYTHON = pathlib.Path(sys.executable);"
        "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    options = ["--pages", str(tmp_path / "pages.jsonl"), "--copies", "1", "2"]
    command = [sys.executable, "-c", code, str(SCRIPT.parent), str(SCRIPT), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    result = json.loads(done.stdout)
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
