"""A run that is killed and given again ends with the weights of an unbroken one, bit for bit."""

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
  backbone: {{kind: {kind}, {sizes}}}
  tokenizer: {tokenizer}
  sharing: sde
  embedding_dim: 8
stages:
  first:
    data: {data}
    steps: 30
    batch_size: 16
    temperature: 0.1
    objective: {objective}
    optimizer: {{name: adafactor, warmup_steps: 3}}
    checkpoint_every_steps: 10
    log_every_steps: 1
  second:
    data: {data}
    steps: 60
    batch_size: 16
    chunk_size: 6
    document_max_length_tokens: 12
    freeze: [token_embedder]
    sharing: ade_spl
    bidirectional: true
    temperature: 0.05
    optimizer: {{name: adamw, learning_rate: 0.003, start_decay: 2.0}}
    checkpoint_every_steps: 7
    log_every_steps: 1
    validation: {{dataset: {data}, split: dev, every_steps: 20, max_queries: 20}}
"""
SIZES = {
    "t5": "num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 8, dropout: 0.2",
    "bert": "num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 8, dropout: 0.2",
}
OBJECTIVES = {"t5": "retrieval", "bert": "masked_lm"}  # of the first stage


def start(recipe, output):
    command = [sys.executable, "-m", "tfde.cli.main", "train", "--run", recipe, "--output", output]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(recipe, output):
    process = start(recipe, output)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    return out


def kill_at(recipe, output, *, stage, step):
    process = start(recipe, output)
    history = output / "history.jsonl"
    for _ in range(15_000):  # five minutes, far more than it takes on a busy machine
        lines = history.read_text().splitlines()[:-1] if history.exists() else []
        records = [json.loads(line) for line in lines]
        if any(r["stage"] == stage and r["step"] >= step for r in records):
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            return
        assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.02)
    pytest.fail("the run never came to the step")


def weights(path):
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return arrays


def history(output):
    records = map(json.loads, (output / "history.jsonl").read_text().splitlines())
    return [{name: r[name] for name in r if name != "pairs_per_s"} for r in records]


# By default one kill, in the second stage: what that resumes from is of every kind.
KILLS = [("first", 13), ("second", 24)]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        pytest.param("bert", KILLS[1:], id="bert"),
        pytest.param("bert", KILLS, marks=pytest.mark.kill, id="bert twice"),
        pytest.param("t5", KILLS, marks=pytest.mark.kill, id="t5 twice"),
    ],
)
def test_killed_and_resumed_ends_the_same(tmp_path, kind, kills):
    data = tiny.write_dataset(tmp_path / "data")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    recipe = tmp_path / "recipe.yaml"
    settings = {"kind": kind, "sizes": SIZES[kind], "objective": OBJECTIVES[kind]}
    recipe.write_text(RECIPE.format(tokenizer=vocabulary, data=data, **settings))
    out = finish(recipe, tmp_path / "whole")
    assert "token_embedder" in out
    assert "best_model" in out
    broken = tmp_path / "broken"
    for stage, step in kills:
        kill_at(recipe, broken, stage=stage, step=step)
    finish(recipe, broken)
    for model in ("model", "best_model"):
        expected = weights(tmp_path / "whole" / model / "model.weights.h5")
        actual = weights(broken / model / "model.weights.h5")
        assert expected.keys() == actual.keys()
        assert len(expected) > 5
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array, err_msg=name)
    # The history tells every step once, and all but the time is the same.
    told = history(broken)
    assert told == history(tmp_path / "whole")
    steps = [(r["stage"], r["step"]) for r in told if "loss" in r]
    assert steps == [("first", i) for i in range(1, 31)] + [("second", i) for i in range(1, 61)]
    assert any("RR" in r for r in told)
