"""`tfde demo` as its users run it: a process of its own, from nothing to answered questions."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tfde.demo.run_demo import QUESTIONS

TFDE = [sys.executable, "-m", "tfde.cli.main"]
TIMEOUT_S = 400


def tfde(*arguments):
    return subprocess.run(
        [*TFDE, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo over the directory of an earlier one that was killed while it read sources."""
    output = tmp_path_factory.mktemp("demo") / "made"
    earlier = subprocess.Popen(
        [*TFDE, "demo", "--output", str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while earlier.poll() is None and not (output / "demo.json").exists():
        time.sleep(0.1)
    earlier.kill()
    assert earlier.wait(60) == -signal.SIGKILL
    (output / "index").mkdir(exist_ok=True)
    (output / "index" / "over.txt").write_text("of the earlier demo")
    done = tfde("demo", "--steps", "4", "--output", output)
    assert done.returncode == 0, done.stderr[-2000:]
    return output, done.stdout


def test_the_earlier_demo_is_replaced(demo):
    output, _ = demo
    assert not (output / "index" / "over.txt").exists()
    assert {"data", "run", "embeddings", "index", "bundle"} <= {p.name for p in output.iterdir()}


def test_the_corpus_is_large_and_the_stages_are_shown(demo):
    output, printed = demo
    pages, documents = (
        int(number.replace(",", ""))
        for number in re.search(r"([\d,]+) pages, ([\d,]+) documents", printed).groups()
    )
    assert pages >= 5000
    # A page with too little text beside its summary is no document.
    assert pages / 2 < documents < pages
    assert re.findall(r"^\[(\d)/6\]", printed, re.MULTILINE) == list("123456")
    assert len(re.findall(r"^ +\d+ s$", printed, re.MULTILINE)) == 6
    manifest = json.loads((output / "embeddings" / "embeddings.json").read_text())
    assert documents in manifest.values() or [documents, 128] in manifest.values()


def test_the_table_has_both_rows_and_an_honest_verdict(demo):
    _, printed = demo
    rows = {}
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("system", "tfde ade_spl", "BM25"):
            rows[cells[0]] = cells[1:]
    assert rows["system"] == ["P@1", "RR", "nDCG@10", "R@100", "seconds"]
    ours, bm25 = (list(map(float, rows[name])) for name in ("tfde ade_spl", "BM25"))
    assert all(0 <= value <= 1 for value in ours[:4] + bm25[:4])
    # Four steps are no training: half of what BM25 finds is out of reach.
    assert ours[2] < bm25[2] / 2
    assert bm25[2] > 0.3
    assert "BM25 wins" in printed


def test_five_questions_are_answered(demo):
    _, printed = demo
    answers = printed[printed.index("\n[6/6]") :]
    places = [answers.index(f"\n  {question}\n") for question in QUESTIONS]
    assert len(places) == 5
    for start, stop in zip(places, [*places[1:], None], strict=True):
        found = re.findall(r"^  (\d)  (-?\d\.\d{3})  (\S+): \S", answers[start:stop], re.MULTILINE)
        assert [rank for rank, _, _ in found] == ["1", "2", "3"]
        scores = [float(score) for _, score, _ in found]
        assert scores == sorted(scores, reverse=True)
        assert len({title for _, _, title in found}) == 3


def test_the_bundle_verifies_and_the_command_that_serves_it_is_printed(demo):
    output, printed = demo
    assert f"  tfde serve {output / 'bundle'} " in printed
    done = tfde("verify", output / "bundle")
    assert (done.returncode, done.stdout) == (0, f"{output / 'bundle'}: as exported\n")


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = tfde("demo", "--steps", "4", "--output", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    message = "is not empty and holds no demo; choose another --output."
    assert done.stderr == f"tfde: demo: {tmp_path} {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_impossible_steps_are_refused_in_one_line(tmp_path):
    done = tfde("demo", "--steps", "0", "--output", tmp_path / "made")
    assert done.returncode == 1
    assert done.stderr == "tfde: demo: `--steps` must be at least 1. Received: 0\n"
    assert not (tmp_path / "made").exists()
