"""What becomes of a training that is interrupted from the keyboard."""

import logging
import signal
import threading

import numpy as np
import pytest
import tiny

from tfde.config.model import TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.training.checkpoint import read_progress
from tfde.training.interrupts import interrupts
from tfde.training.run import train


class Interrupter(logging.Handler):
    """Presses the keys when a line is logged that begins so."""

    def __init__(self, beginning):
        super().__init__()
        self.beginning = beginning

    def emit(self, record):
        if record.getMessage().startswith(self.beginning):
            signal.raise_signal(signal.SIGINT)


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
    logger, keys = logging.getLogger("tfde"), Interrupter("stage one")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(keys)
    try:
        message = r"^at step 1 of 3 of stage one, which is saved: the same command goes on"
        with pytest.raises(KeyboardInterrupt, match=message):
            train(run, tmp_path / "run", verbose=0)
    finally:
        logger.removeHandler(keys)
        logger.setLevel(level)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_progress(tmp_path / "run" / "checkpoint.safetensors").step == 1
    model = train(run, tmp_path / "run", verbose=0)
    for name, weight in model.towers.named_weights().items():
        np.testing.assert_array_equal(weight, unbroken[name])


def test_the_second_interrupt_ends_at_once():
    def press_twice():
        with interrupts(alone=True) as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second one does nothing")

    with pytest.raises(KeyboardInterrupt):
        press_twice()


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
