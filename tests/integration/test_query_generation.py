"""From a trained generator to pairs that train and a corpus that BM25 searches; and `kill -9`."""

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tiny
import tiny_seq2seq

from tfde.cli.main import main
from tfde.config.negatives import GenerationRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.negatives.generate_queries import generate_queries
from tfde.negatives.saved_model_generator import SavedModelGenerator

SCRIPT = Path(__file__).parents[2] / "pipelines" / "train_query_generator.py"

GENERATE = """
import sys, time
from tfde.data.dataset_directory import DatasetDirectory
from tfde.negatives.generate_queries import generate_queries
from tfde.config.negatives import GenerationRules
from tfde.negatives.saved_model_generator import SavedModelGenerator

class Slow(SavedModelGenerator):
    def generate(self, documents):
        time.sleep(0.2)
        return super().generate(documents)

rules = GenerationRules(queries_per_document=2, seed=3)
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


def test_a_t5_of_random_weights():
    texts = tiny.document_texts()
    sizes = argparse.Namespace(vocabulary_size=60, num_layers=1, num_heads=2, hidden_dim=8)
    model = runpy.run_path(str(SCRIPT))["random_t5"](texts, sizes)
    assert model.backbone.vocabulary_size == 60
    tokens = model.preprocessor.tokenizer([texts[0]])
    assert list(model.preprocessor.tokenizer.detokenize(tokens)) == [texts[0]]


@pytest.mark.parametrize(("steps", "lines"), [(2, 1), (6, 2), (7, 3)])
def test_a_generator_is_trained_so_many_steps(capsys, steps, lines):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.from_tensors((tf.ones((2, 1)), tf.zeros((2, 1)))).repeat()
    runpy.run_path(str(SCRIPT))["fit"](model, batches, steps, shown=3)
    assert int(model.optimizer.iterations) == steps
    assert capsys.readouterr().out.count("loss: ") == lines


def test_the_road(work, capsys, monkeypatch):
    start = tiny_seq2seq.t5(work / "start")
    options = ["--steps", 2, "--batch_size", 8, "--document_max_length_tokens", 16]
    given = [SCRIPT, "--dataset", work / "data", "--start", start, "--output", work / "t5"]
    monkeypatch.setattr(sys, "argv", [str(value) for value in [*given, *options]])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    capsys.readouterr()  # Keras's losses
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dataset", "nowhere", "--output", "o"])
    with pytest.raises(SystemExit, match=r"^1$"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().err.startswith("train_query_generator.py: nowhere: a dataset dir")
    code, out, error = tfde(
        capsys, "generate-queries", "--dataset", work / "data", "--model", work / "t5",
        "--queries_per_document", 2, "--query_max_length_tokens", 6,
        "--output", work / "pairs.jsonl.gz",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert " queries for 40 documents, " in out
    recipe = work / "recipe.yaml"
    pairs, data, model = work / "pairs.jsonl.gz", work / "data", work / "model"
    recipe.write_text(RECIPE.format(model=model, pairs=pairs, data=data))
    code, _, error = tfde(capsys, "train", "--run", recipe, "--output", work / "run")
    assert code == 0, error
    assert (work / "run" / "model" / "config.json").exists()


def test_a_saved_model_the_filter_and_an_expanded_corpus(work, capsys):
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

    code, _, error = tfde(capsys, *common, "--as", "expansion", "--output", work / "more")
    assert (code, error) == (0, "")
    code, out, error = tfde(
        capsys, "evaluate", "--dataset", work / "more", "--split", "dev", "--bm25", "--json"
    )
    assert (code, error) == (0, "")
    assert json.loads(out)["queries"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nowhere"], "nowhere: must be a SavedModel, or a keras-hub preset of a seq"),
        (["--model", "nowhere", "--temperature", 0], "`temperature` must be above 0"),
        (["--model", "m", "--by", "bm25"], "`by` goes with `keep_rank`"),
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
    model = tiny_seq2seq.saved_model(tmp_path / "model")
    unbroken, broken = tmp_path / "unbroken.jsonl", tmp_path / "broken.jsonl"
    rules = GenerationRules(queries_per_document=2, seed=3)
    generator = SavedModelGenerator(model, rules, batch_size=3)  # another batch, the same queries
    generate_queries(DatasetDirectory(data), generator, unbroken, documents_at_once=4)
    parts = tmp_path / "broken.jsonl.parts"
    command = [sys.executable, "-c", GENERATE, data, model, broken]
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
