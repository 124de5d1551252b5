"""Running a benchmark whose answer is JSON, with this environment in place of the peers'."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(script: str, *options: object) -> dict:
    """Returns what the script printed; `machine` asks this interpreter for the versions."""
    code = (
        "import pathlib, runpy, sys; sys.path.insert(0, sys.argv[1]); import side_by_side;"
        "side_by_side.PEERS_PYTHON = pathlib.Path(sys.executable);"
        "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, BENCHMARKS, BENCHMARKS / script, *options]
    done = subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    return json.loads(done.stdout)
