"""A large checkpoint is converted within little more than its own size (the benchmark, smaller)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checkpoint_memory.py"
# TensorFlow's threads, libraries and graphs; the full size is measured by the benchmark.
FIXED_BYTES = 130e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_of_a_conversion(tmp_path, dtype):
    """A second copy of the weights, or of a file's pages, would be 400 MB or 200 MB more."""
    sizes = ["--layers", "4", "--hidden-dim", "512", "--intermediate-dim", "16384"]
    sizes += ["--heads", "16", "--key-value-dim", "128", "--vocabulary-size", "8000"]
    sizes += ["--shard-bytes", "100000000", "--folder", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *sizes, "--dtype", dtype, "--stored-dtype", dtype]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    figures = json.loads(done.stdout)
    assert figures["parameters"] > 80e6
    assert figures["written_bytes"] < 1.01 * figures["model_bytes"]
    taken = figures["peak_bytes"] - figures["baseline_bytes"]
    assert taken < 1.2 * figures["model_bytes"] + FIXED_BYTES, figures
