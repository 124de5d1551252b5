"""Two devices, and two processes, train as one device does on the whole batch."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny
import two_devices

TESTS = Path(__file__).parents[1]
WAIT_S = 240  # far more than a step or an import may take on a busy machine
TIMEOUT_S = 30
RECIPE = """
seed: 3
distribution: {distribution}
collective_timeout_s: {timeout_s}
model:
  backbone: {{kind: bag_of_words, embedding_dim: 8, hidden_dim: 8, dropout: 0.0}}
  tokenizer: {tokenizer}
  sharing: ade_spl
  embedding_dim: 8
stages:
  only:
    data: {data}
    steps: 24
    batch_size: 16
    bidirectional: true
    temperature: 0.1
    optimizer: {{name: adamw, learning_rate: 0.003}}
    checkpoint_every_steps: 5
    log_every_steps: 1
    validation: {{dataset: {data}, split: dev, every_steps: 24, max_queries: 20}}
"""


# ---- two devices of one process ------------------------------------------------------------------


def run_two_devices(*arguments):
    done = subprocess.run(
        [sys.executable, TESTS / "two_devices.py", *arguments],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# What each of the others shows by itself, the last of these shows together.
TOGETHER = ("adamw", "all_in_chunks")


@pytest.fixture(scope="module")
def together():
    return {line["case"]: line for line in run_two_devices(*TOGETHER, "refusals")}


@pytest.fixture(scope="module")
def apart():
    cases = [case for case in two_devices.CASES if case not in TOGETHER]
    return {line["case"]: line for line in run_two_devices(*cases)}


@pytest.mark.parametrize("case", TOGETHER)
def test_two_devices_train_as_one(together, case):
    assert_trained_as_one(together[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in two_devices.CASES if case not in TOGETHER])
def test_each_feature_by_itself(apart, case):
    assert_trained_as_one(apart[case])


def assert_trained_as_one(line):
    # float32 sums taken in another order: 1e-7 each, and a few steps that build on each other.
    np.testing.assert_allclose(line["two"]["loss"], line["one"]["loss"], rtol=1e-5)
    np.testing.assert_allclose(line["two"]["accuracy"], line["one"]["accuracy"], atol=1e-6)
    assert line["texts"][0] == line["texts"][1]
    assert line["texts"][0][0][2] > 0
    assert line["moved"] > 0.02
    # AdamW takes the sign of a gradient that is next to nothing for a direction.
    assert line["difference"] < (5e-5 if line["case"] == "adamw" else 5e-6)


@pytest.mark.slow
def test_cases_differ(together, apart):
    lines = [*apart.values(), together["all_in_chunks"]]
    losses = [line["one"]["loss"][0] for line in lines]
    assert len({round(loss, 3) for loss in losses}) == len(losses)


def test_what_replicas_cannot_do_is_refused(together):
    said = together["refusals"]["said"]
    rows = r"the rows of each batch of `{}` must be a multiple of the 2 {}, which .* Received: {}"
    patterns = {
        "batch_size": rows.format("x", "replicas", "3 rows$"),
        "groups": rows.format("x", "replicas times the 3 pairs of a group", "9 rows$"),
        "held_out_groups": rows.format("x", "replicas times the 3 pairs of a group", ".*"),
        "last_batch": rows.format("x", "replicas", ".*3 in the last batch$"),
        "held_out": rows.format("validation_data", "replicas", "3 rows$"),
        "measured": rows.format("x", "replicas", ".*3 in the last batch$"),
        "one_batch": rows.format("x", "replicas", "5 rows$"),
        "batches": r"each batch of `x` must have a multiple .*drop_remainder=.* Received: 3 rows",
        "measured_batches": r"each batch of `x` must have a multiple .* Received: 3 rows",
        "jit_compile": r"`jit_compile` must be false with 2 replicas, .* jit_compile=True",
        "metrics": r"`metrics` must be made in the scope of the strategy. Rec",
        "late": r"`distribution: multi_worker` must come before anything else .* Received: ",
    }
    assert said.keys() == patterns.keys()
    for name, pattern in patterns.items():
        assert re.match(pattern, said[name])


# ---- two processes -------------------------------------------------------------------------------


def start(recipe, output, *, processes):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(processes)]
    started = []
    for index in range(processes):
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.pop("TF_CONFIG", None)
        if processes > 1:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        command = [sys.executable, "-m", "tfde.cli.main", "train"]
        command += ["--run", str(recipe), "--output", str(output)]
        log = recipe.parent / f"process_{index}_of_{processes}.txt"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=file
            )
        started.append((process, log))
    return started


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def finish(started):
    try:
        for process, log in started:
            assert process.wait(WAIT_S) == 0, log.read_text()[-2000:]
    finally:
        for process, _ in started:
            process.kill()


def wait_for_steps(output, count, started):
    history = output / "history.jsonl"
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if history.exists() and len(history.read_text().splitlines()) >= count:
            return
        for process, log in started:
            assert process.poll() is None, log.read_text()[-2000:]
        time.sleep(0.02)
    pytest.fail("the run never came to the step")


def weights(output):
    arrays = {}
    with h5py.File(output / "model" / "model.weights.h5") as file:
        file.visititems(
            lambda name, item: (
                arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return arrays


def losses(output):
    records = map(json.loads, (output / "history.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def assert_same_run(one, two):
    expected, actual = weights(one), weights(two)
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        # 24 steps of rate 0.003 move weights by up to 0.07; rounding, by AdamW's signs, by 1e-6.
        np.testing.assert_allclose(actual[name], array, atol=2e-5, err_msg=name)
    assert list(losses(two)) == list(range(1, 25))
    np.testing.assert_allclose(list(losses(two).values()), list(losses(one).values()), rtol=1e-4)
    assert (two / "best_model" / "config.json").exists()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    directory = tmp_path_factory.mktemp("processes")
    data = tiny.write_dataset(directory / "data")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    path = directory / "recipe.yaml"
    path.write_text(
        RECIPE.format(data=data, tokenizer=vocabulary, distribution="auto", timeout_s=TIMEOUT_S)
    )
    return path


@pytest.fixture(scope="module")
def whole(recipe):
    output = recipe.parent / "whole"
    finish(start(recipe, output, processes=1))
    return output


@pytest.mark.slow
def test_two_processes_train_as_one(recipe, whole):
    output = recipe.parent / "two"
    finish(start(recipe, output, processes=2))
    assert_same_run(whole, output)


@pytest.mark.kill
@pytest.mark.parametrize("killed", [0, 1])
def test_killed_process_ends_the_other_and_both_resume(recipe, whole, killed):
    output = recipe.parent / f"killed_{killed}"
    started = start(recipe, output, processes=2)
    try:
        wait_for_steps(output, 8, started)
        started[killed][0].kill()
        survivor, log = started[1 - killed]
        assert survivor.wait(TIMEOUT_S + 60) == 1
    finally:
        for process, _ in started:
            process.kill()
    last = log.read_text().splitlines()[-1]
    assert re.match(
        rf"tfde train: ((worker {killed}|another process) of this run is gone|a process was silent"
        rf" for the {TIMEOUT_S} s of `collective_timeout_s`); the same command in every process"
        " goes on from the last checkpoint",
        last,
    )
    finish(start(recipe, output, processes=2))
    assert_same_run(whole, output)


@pytest.mark.slow
def test_two_processes_train_with_refreshed_negatives(recipe):
    """The first process mines, both read what it found, and go on."""
    path, output = recipe.parent / "refresh.yaml", recipe.parent / "refreshed"
    refresh = "refresh: {every_steps: 10, count: 2, max_rank: 10}"
    text = recipe.read_text()
    path.write_text(
        text.replace("    bidirectional: true\n", f"    negatives_per_query: 1\n    {refresh}\n")
    )
    finish(start(path, output, processes=2))
    records = list(map(json.loads, (output / "history.jsonl").read_text().splitlines()))
    assert [line["step"] for line in records if "refresh_seconds" in line] == [10, 20]
    assert list(losses(output)) == list(range(1, 25))
    names = sorted(file.name for file in (output / "negatives" / "only").iterdir())
    assert names == ["step-20.jsonl.gz", "step-20.jsonl.gz.json"]
