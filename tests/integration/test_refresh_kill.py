"""`kill -9` between refreshes of negatives and inside one: the weights are those of a whole run."""

import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
import tiny

RECIPE = """
seed: 3
deterministic: true
model:
  backbone: {{kind: bag_of_words, embedding_dim: 8, hidden_dim: 8, dropout: 0.2}}
  tokenizer: {tokenizer}
  sharing: ade_spl
  embedding_dim: 8
stages:
  only:
    data: {data}
    steps: 36
    batch_size: 16
    chunk_size: 6
    negatives_per_query: 2
    refresh: {{every_steps: 10, count: 3, max_rank: 20, choice: sampled, temperature: 0.1}}
    temperature: 0.1
    optimizer: {{name: adamw, learning_rate: 0.01, warmup_steps: 3}}
    checkpoint_every_steps: 7
    log_every_steps: 1
"""
# The argument: how long each question of the model's index waits.
TRAIN = """
import sys, time
from tfde.cli.main import main
from tfde.negatives.candidate_sources import ModelCandidates

search = ModelCandidates.search
def slow_search(self, queries, k):
    time.sleep(float(sys.argv[3]))
    return search(self, queries, k)
ModelCandidates.search = slow_search
sys.exit(main(["train", "--run", sys.argv[1], "--output", sys.argv[2]]))
"""


def start(recipe, output, pause=0):
    command = [sys.executable, "-c", TRAIN, str(recipe), str(output), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(recipe, output):
    process = start(recipe, output)
    error = process.communicate(timeout=300)[1]
    assert process.returncode == 0, error[-2000:]


def kill_when(process, there):
    until = time.monotonic() + 120
    while not there():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def history(output):
    path = output / "history.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()[: text.count("\n")]]


def weights(path):
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return arrays


@pytest.mark.kill
def test_killed_between_refreshes_and_inside_one_ends_the_same(tmp_path):
    data = tiny.write_dataset(tmp_path / "data")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(tokenizer=vocabulary, data=data))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(recipe, whole)
    mined = broken / "negatives" / "only"
    # The last checkpoint is that of step 14: the negatives of step 10 must still be there.
    process = start(recipe, broken, pause=1)
    kill_when(process, lambda: any(line["step"] >= 15 for line in history(broken)))
    assert (mined / "step-10.jsonl.gz").exists()
    process = start(recipe, broken, pause=60)
    encoded = mined / "step-20.jsonl.gz.parts" / "embeddings" / "embeddings.json"
    kill_when(process, encoded.exists)
    assert not (mined / "step-20.jsonl.gz").exists()
    finish(recipe, broken)
    expected = weights(whole / "model" / "model.weights.h5")
    actual = weights(broken / "model" / "model.weights.h5")
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
    names = {file.name: file.read_bytes() for file in mined.iterdir()}
    assert sorted(names) == ["step-30.jsonl.gz", "step-30.jsonl.gz.json"]
    assert (
        names["step-30.jsonl.gz"]
        == (whole / "negatives" / "only" / "step-30.jsonl.gz").read_bytes()
    )
    steps = [line["step"] for line in history(broken) if "refresh_seconds" in line]
    assert steps == [10, 20, 30]
    assert [line["step"] for line in history(broken) if "loss" in line] == list(range(1, 37))
