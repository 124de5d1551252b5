"""Commands that are called one after the other in one process."""

import logging

from tfde.cli.logs import show_logs


def test_a_line_is_shown_once_on_the_stderr_of_now(capsys):
    show_logs()
    capsys.readouterr()
    show_logs()
    logging.getLogger("tfde").info("a line")
    assert capsys.readouterr().err == "a line\n"
