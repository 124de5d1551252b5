"""Damaged requests of every kind against the model server, fewer than the script sends."""

import pytest
from benchmark_script import run_benchmark


@pytest.mark.slow
def test_damaged_requests_do_no_harm():
    answer = run_benchmark("server_fuzz.py", "--requests", 1000)
    assert answer["exit_code"] == 0
    assert sum(answer["grpc"].values()) == sum(answer["rest"].values()) == 500
    assert answer["grpc"]["INVALID_ARGUMENT"] > 10
    assert answer["rest"]["400"] > 100
