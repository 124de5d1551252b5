"""The benchmark of the model server runs, with few requests."""

import pytest
from benchmark_script import run_benchmark


@pytest.mark.slow
def test_it_measures_every_way_to_ask():
    result = run_benchmark("model_server.py", "--requests", 20)
    assert result["first_answer_s"] > 0
    for name in ("bare", "grpc", "rest"):
        assert 0 < result[name]["p50_ms"] <= result[name]["p99_ms"]
    for name in ("grpc_adds", "rest_adds"):
        added = result[name]
        assert added["lowest_ms"] <= added["median_ms"] <= added["highest_ms"]
