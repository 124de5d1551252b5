"""What a process of its own gives back: a result, an error in one line, or nothing."""

import os
import signal

import pytest

from tfde.errors import TrainingError
from tfde.studies.parallel_jobs import call_in_child


def test_result_error_and_death(tmp_path):
    assert call_in_child(os.path.join, "a", "b") == "a/b"
    assert call_in_child(os.getpid) != os.getpid()
    missing = str(tmp_path / "nowhere")
    with pytest.raises(TrainingError, match=r"^FileNotFoundError: .*nowhere'$"):
        call_in_child(os.listdir, missing)
    with pytest.raises(TrainingError, match="its process was killed; perhaps the machine has too"):
        call_in_child(signal.raise_signal, signal.SIGKILL)


def test_cores():
    core = min(os.sched_getaffinity(0))
    assert call_in_child(os.sched_getaffinity, 0, cores=[core]) == {core}
    assert call_in_child(os.sched_getaffinity, 0) == os.sched_getaffinity(0)
