"""The benchmarks of negatives and of near duplicates run, on a few sentences."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Paragraphs of four sentences, whose ids say so; some questions stand twice."""
    folder = tmp_path_factory.mktemp("sentences")
    data = tiny.write_dataset(folder / "data", documents=100)
    for file in (data / "corpus.jsonl", *(data / "qrels").iterdir()):
        text = file.read_text()
        for number in reversed(range(100)):
            new = f"p{number // 4}.{number % 4}"
            text = text.replace(f'"d{number}"', f'"{new}"').replace(f"\td{number}\t", f"\t{new}\t")
        file.write_text(text)
    with (data / "queries.jsonl").open("a") as file:
        for number in range(5):
            file.write(
                json.dumps({"_id": f"r{number}", "text": "the red house by the lake"}) + "\n"
            )
    return data


def run(script, *options):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, options)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout


def rows(text):
    """The cells of a Markdown table, by the first of each row."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines[1:]}


@pytest.mark.slow
def test_kinds_of_negatives(dataset, tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    found = rows(run("hard_negatives.py", dataset, "--model", tmp_path / "model", "--share", 0.5))
    assert len(found) == 8
    for cells in found.values():
        assert cells[0].endswith("%")
        assert 0 <= float(cells[2]) <= 1  # resemblance to the positive


@pytest.mark.slow
def test_training_with_each_kind(dataset, tmp_path):
    options = ["--share", 0.5, "--first-steps", 2, "--steps", 4, "--dim", 4, "--seeds", 1]
    options += ["--vocabulary-size", 45, "--work", tmp_path / "work"]
    found = rows(run("hard_negatives_training.py", dataset, *options))
    assert list(found) == [
        "start",
        "the batch alone",
        "random",
        "BM25",
        "model, once",
        "model, refreshed",
    ]
    assert all(0 <= float(cells[0]) <= float(cells[1]) <= 1 for cells in found.values())
    history = (tmp_path / "work" / "model_refreshed_0" / "history.jsonl").read_text()
    told = [line for line in map(json.loads, history.splitlines()) if "refresh_seconds" in line]
    assert [line["step"] for line in told] == [1, 2, 3]


def test_near_duplicates(dataset):
    value = json.loads(run("near_duplicates.py", dataset, "--thresholds", 0.9, 0.6))
    assert value["texts"] == 105
    assert [row["threshold"] for row in value["rows"]] == [0.9, 0.6]
    strict, loose = value["rows"]
    assert strict["largest"] == 5
    assert strict["texts_in_groups"] <= loose["texts_in_groups"]
    assert ["the red house by the lake"] * 2 in strict["examples"]
