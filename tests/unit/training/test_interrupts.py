"""What becomes of a training that is interrupted, from the keyboard or by its machine."""

import contextlib
import dataclasses
import json
import logging
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tiny

from tfde.config.matching import MatchDataConfig, MatchModelConfig, MatchRun
from tfde.config.model import TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.config.validation import ValidationConfig
from tfde.training.checkpoint import read_progress
from tfde.training.interrupts import interrupts
from tfde.training.match_run import train_matcher
from tfde.training.run import train


class Interrupter(logging.Handler):
    """Presses the keys when a line is logged that begins so."""

    def __init__(self, beginning):
        super().__init__()
        self.beginning = beginning

    def emit(self, record):
        if record.getMessage().startswith(self.beginning):
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def interrupted_at(beginning):
    logger, keys = logging.getLogger("tfde"), Interrupter(beginning)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(keys)
    try:
        yield
    finally:
        logger.removeHandler(keys)
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _keyboard():
    """Python's own handler, which a program in a shell's background has not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data", documents=60))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    backbone = {"kind": "bag_of_words", "embedding_dim": 4, "hidden_dim": 4}
    rate = OptimizerConfig("adamw", 0.01, "constant")
    stage = StageConfig(data, steps=3, batch_size=8, optimizer=rate)
    return TrainRun(ModelConfig(backbone, str(vocabulary), text=TextConfig(8, 16)), {"one": stage})


def test_the_step_at_work_is_saved_and_the_run_goes_on_as_if_unbroken(tmp_path, run):
    unbroken = train(run, tmp_path / "whole", verbose=0).towers.named_weights()
    message = r"^at step 1 of 3 of stage one, which is saved: the same command goes on"
    with interrupted_at("stage one"), pytest.raises(KeyboardInterrupt, match=message):
        train(run, tmp_path / "run", verbose=0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_progress(tmp_path / "run" / "checkpoint.safetensors").step == 1
    model = train(run, tmp_path / "run", verbose=0)
    for name, weight in model.towers.named_weights().items():
        np.testing.assert_array_equal(weight, unbroken[name])


def test_an_interrupt_while_the_start_is_measured_takes_no_step(tmp_path, run):
    stage = run.stages["one"]
    validation = ValidationConfig(stage.data, "train", every_steps=3, measure_start=True)
    run = dataclasses.replace(
        run, stages={"one": dataclasses.replace(stage, validation=validation)}
    )
    with (
        interrupted_at("stage one"),
        pytest.raises(KeyboardInterrupt, match=r"^before the first"),
    ):
        train(run, tmp_path / "run", verbose=0)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_the_second_interrupt_ends_at_once():
    def press_twice():
        with interrupts(alone=True) as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second one does nothing")

    with pytest.raises(KeyboardInterrupt):
        press_twice()


def test_a_matcher_goes_on_within_an_epoch(tmp_path, run):
    rows = [f"{a}\t{b}\t{['no', 'yes'][a == b]}" for a in tiny.WORDS[:4] for b in tiny.WORDS[:4]]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    model = MatchModelConfig("cross_encoder", {"kind": "bert", **sizes}, run.model.tokenizer)
    match = MatchRun(
        model, MatchDataConfig(str(tmp_path)), epochs=1, batch_size=4, log_every_steps=1
    )
    unbroken = train_matcher(match, tmp_path / "whole", verbose=0)
    message = "^at step 1 of 4 of stage match, which is saved"
    with interrupted_at("step 1 of"), pytest.raises(KeyboardInterrupt, match=message):
        train_matcher(match, tmp_path / "run", verbose=0)
    again = train_matcher(match, tmp_path / "run", verbose=0)
    for one, other in zip(again.weights, unbroken.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sigterm_saves_the_step_and_then_ends_the_process(tmp_path, run):
    """A real process, and what it leaves."""
    stage = dataclasses.replace(run.stages["one"], steps=10**6)
    run = dataclasses.replace(run, stages={"one": stage})
    recipe = tmp_path / "run.json"
    recipe.write_text(json.dumps(dataclasses.asdict(run)))
    command = [sys.executable, "-m", "tfde.cli.main", "train", "--run", str(recipe)]
    command += ["--output", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "step 50 of" in line:
                break
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM, said
    step = read_progress(tmp_path / "run" / "checkpoint.safetensors").step
    assert step >= 50
    assert f"ended by SIGTERM at step {step} of 1000000 of stage one, which is saved" in said
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left <= {"run.json", "history.jsonl", "tensorboard", "checkpoint.safetensors", ".lock"}


AT_WORK = """
import sys, time
from tfde.cli.main import run_command
from tfde.training.interrupts import interrupts

def work(_):
    with interrupts(alone=True):
        print("at work", flush=True)
        time.sleep(60)
        if sys.argv[1] == "fails":
            raise ValueError("another error")

sys.exit(run_command("tfde train", work, None))
"""


def test_the_second_sigterm_ends_at_once():
    command = [sys.executable, "-c", AT_WORK, "works"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert "once more ends at once" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)  # the work takes longer
    assert process.returncode == -signal.SIGTERM
    assert said == ""


def test_a_sigterm_is_not_lost_where_the_work_fails():
    program = AT_WORK.replace("time.sleep(60)", "signal.raise_signal(signal.SIGTERM)")
    command = [sys.executable, "-c", f"import signal{program}", "fails"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_a_program_that_handles_sigterm_itself_keeps_its_way():
    found = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    try:
        with interrupts(alone=True) as stop:
            signal.raise_signal(signal.SIGTERM)
            assert found == [signal.SIGTERM]
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_interrupt_is_not_forgotten_where_no_step_follows():
    with pytest.raises(KeyboardInterrupt), interrupts(alone=True):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_of_several_processes_and_in_other_threads_interrupts_are_as_ever():
    with pytest.raises(KeyboardInterrupt), interrupts(alone=False) as stop:
        signal.raise_signal(signal.SIGINT)
    assert not stop.is_set()
    found = []

    def work():
        with interrupts(alone=True):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
