"""The benchmark of retrievers runs, on a few vectors."""

import json
import subprocess
import sys

import pytest
from benchmark_script import BENCHMARKS


@pytest.mark.slow
def test_a_line_for_each_retriever(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "retrievers.py"), "--sizes", "300x8"]
    command += ["--retrievers", "exact_int8", "--folder", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    about, line = map(json.loads, done.stdout.splitlines())
    assert about["command"].startswith("python benchmarks/retrievers.py --sizes 300x8")
    assert (line["rows"], line["dim"], line["retriever"]) == (300, 8, "exact_int8")
    # No two of 300 vectors score alike, and all that is near is scored again.
    assert line["recall_at_10"] == 1.0
    assert line["p50_ms_1"] > 0
    assert line["p50_ms_32"] > 0
    assert line["resident_mib"] > 0
    assert line["stored_mib"] > 0
    assert not list(tmp_path.iterdir())
