"""From a trained generator to pairs that train and a corpus that BM25 searches; and `kill -9`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import tiny_seq2seq

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.negatives.generate_queries import generate_queries
from tfde.negatives.generation_rules import GenerationRules
from tfde.negatives.keras_hub_generator import KerasHubGenerator

ROOT = Path(__file__).parents[2]

GENERATE = """
import sys, time
from tfde.data.dataset_directory import DatasetDirectory
from tfde.negatives.generate_queries import generate_queries
from tfde.negatives.generation_rules import GenerationRules
from tfde.negatives.keras_hub_generator import KerasHubGenerator

class Slow(KerasHubGenerator):
    def generate(self, documents):
        time.sleep(0.2)
        return super().generate(documents)

rules = GenerationRules(queries_per_document=2, query_max_length_tokens=6, seed=3)
generate_queries(
    DatasetDirectory(sys.argv[1]), Slow(sys.argv[2], rules, batch_size=4), sys.argv[3],
    documents_at_once=4,
)
"""

RECIPE = """
model:
  backbone: {model}
stages:
  synthetic:
    data: {pairs}
    dataset: {data}
    steps: 2
    batch_size: 8
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    tiny.write_dataset(directory / "data", documents=40)
    tiny.dual_encoder().save_to_preset(directory / "model")
    return directory


def tfde(capsys, *args):
    code = main([str(arg) for arg in args])
    out, error = capsys.readouterr()
    return code, out, error


def train_generator(work, *options):
    script = [sys.executable, ROOT / "pipelines" / "train_query_generator.py", "--dataset"]
    sizes = ["--steps", "4", "--batch_size", "8", "--document_max_length_tokens", "16"]
    subprocess.run([*script, work / "data", *sizes, *options], check=True)


def test_the_road(work, capsys):
    train_generator(
        work, "--output", work / "first", "--vocabulary_size", "45", "--num_layers", "1",
        "--num_heads", "2", "--hidden_dim", "8",
    )  # fmt: skip
    train_generator(work, "--start", work / "first", "--output", work / "t5")
    common = [
        "generate-queries", "--dataset", work / "data", "--model", work / "t5",
        "--queries_per_document", 2, "--query_max_length_tokens", 6,
    ]  # fmt: skip
    code, out, error = tfde(capsys, *common, "--output", work / "pairs.jsonl.gz")
    assert (code, error) == (0, "")
    assert " queries for 40 documents, " in out
    recipe = work / "recipe.yaml"
    pairs, data, model = work / "pairs.jsonl.gz", work / "data", work / "model"
    recipe.write_text(RECIPE.format(model=model, pairs=pairs, data=data))
    code, _, error = tfde(capsys, "train", "--run", recipe, "--output", work / "run")
    assert code == 0, error
    assert (work / "run" / "model" / "config.json").exists()

    code, _, error = tfde(capsys, *common, "--as", "expansion", "--output", work / "more")
    assert (code, error) == (0, "")
    code, out, error = tfde(
        capsys, "evaluate", "--dataset", work / "more", "--split", "dev", "--bm25", "--json"
    )
    assert (code, error) == (0, "")
    assert json.loads(out)["queries"] == 8


def test_a_saved_model_and_the_filter(work, capsys):
    model = tiny_seq2seq.saved_model(work / "saved")
    common = [
        "generate-queries", "--dataset", work / "data", "--model", model, "--keep_rank", 40,
        "--queries_per_document", 3,
    ]  # fmt: skip
    code, out, error = tfde(capsys, *common, "--output", work / "bm25.jsonl")
    assert (code, error) == (0, "")
    # The first word finds all 40, "seed ..." none, and the third is empty.
    assert "40 queries for 40 documents, 0 of them with none" in out
    assert "left out: 40 empty, 0 repeated, 40 that do not find their document" in out
    code, out, error = tfde(
        capsys, *common, "--by", work / "model", "--output", work / "model.jsonl"
    )
    assert (code, error) == (0, "")
    assert "80 queries for 40 documents" in out  # in the first 40 of 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nowhere"], "nowhere: must be a SavedModel, or a keras-hub preset of a seq"),
        (["--model", "nowhere", "--temperature", 0], "`temperature` must be above 0"),
        (["--dataset", "nowhere", "--model", "m"], "nowhere: a dataset directory"),
    ],
)
def test_impossible_commands(work, capsys, options, message):
    if "--dataset" not in options:
        options = ["--dataset", work / "data", *options]
    code, _, error = tfde(capsys, "generate-queries", "--output", work / "no", *options)
    assert code == 1
    assert message in error
    assert len(error.splitlines()) == 1


def test_killed_and_resumed_equals_unbroken(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    preset = tiny_seq2seq.t5(tmp_path / "t5")
    unbroken, broken = tmp_path / "unbroken.jsonl", tmp_path / "broken.jsonl"
    rules = GenerationRules(queries_per_document=2, query_max_length_tokens=6, seed=3)
    generator = KerasHubGenerator(preset, rules, batch_size=3)  # another batch, the same queries
    generate_queries(DatasetDirectory(data), generator, unbroken, documents_at_once=4)
    parts = tmp_path / "broken.jsonl.parts"
    command = [sys.executable, "-c", GENERATE, data, preset, broken]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while not (parts / "part-00003.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    assert not broken.exists()
    finished = [file.stem for file in parts.glob("part-*.json")]
    assert 4 <= len(finished) < 10
    subprocess.run(command, check=True, timeout=120)
    assert broken.read_bytes() == unbroken.read_bytes()
    record = (tmp_path / "unbroken.jsonl.json").read_bytes()
    assert (tmp_path / "broken.jsonl.json").read_bytes() == record
    assert not parts.exists()
