"""What long work shows where nobody looks at a terminal."""

import os
import pty
import subprocess
import sys
import termios

WORK = """
import time, tfde.progress as progress
progress._SILENT_S, progress._SECONDS_A_LINE = {silent}, 0.05
with progress.progress_bar(total=40, unit="doc", desc="encode") as bar:
    for _ in range(40):
        time.sleep(0.02)
        bar.update()
"""


def test_lines_where_stderr_is_no_terminal():
    work = WORK.format(silent=0.1)
    shown = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=True)
    lines = shown.stderr.splitlines()
    assert len(lines) > 2
    assert all(line.startswith("encode:") and "/40 [" in line and "doc/s" in line for line in lines)
    assert "\r" not in shown.stderr
    assert shown.stdout == ""


def test_a_bar_within_a_bar_is_lines_too():
    outer = """
import tfde.progress as progress
with progress.progress_bar(total=1, desc="cells") as outer:
    exec(WORK)
"""
    work = f"WORK = {WORK.format(silent=0.1)!r}\n{outer}"
    shown = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=True)
    lines = [line for line in shown.stderr.splitlines() if line.startswith("encode:")]
    assert len(lines) > 2
    assert not {"\x1b", "\r"} & set(shown.stderr)


def test_short_work_is_silent():
    work = WORK.format(silent=60)
    shown = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=True)
    assert shown.stderr == ""


def test_a_bar_on_a_terminal():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    work = WORK.format(silent=0.1)
    subprocess.run([sys.executable, "-c", work], stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "40/40" in shown
    assert shown.count("\r") > 2
