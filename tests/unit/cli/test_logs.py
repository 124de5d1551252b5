"""Commands that are called one after the other in one process."""

import logging
import os

import pytest

from tfde.cli.logs import limit_logs, quiet_libraries, show_logs


def test_a_line_is_shown_once_on_the_stderr_of_now(capsys):
    show_logs()
    capsys.readouterr()
    show_logs()
    logging.getLogger("tfde").info("a line")
    assert capsys.readouterr().err == "a line\n"


def test_a_server_repeats_itself_less_to_its_own_log_alone(capsys):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tfde")
    logger.addHandler(handler)
    try:
        show_logs()
        limit_logs()
        capsys.readouterr()
        for number in range(3):
            logger.warning("line %d", number)
    finally:
        logger.removeHandler(handler)
    assert lines == ["line 0", "line 1", "line 2"]
    assert capsys.readouterr().err == "line 0\n"


@pytest.mark.parametrize(
    ("given", "taken"), [(None, "3"), ("2", "3"), ("3", "3"), ("1", "1"), ("0", "0")]
)
def test_tensorflow_is_quiet_unless_it_was_to_speak(monkeypatch, given, taken):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
    quiet_libraries()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == taken
