"""The map of the rooms is that of the imports."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_is_current():
    command = [sys.executable, ROOT / "docs" / "site" / "rooms.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
