"""The benchmark of a training's start and shares runs, with the recipe as it is."""

import pytest
import tiny
from benchmark_script import run_benchmark


def test_the_first_step_and_all_shares_are_measured(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    data = tiny.write_dataset(tmp_path / "data")
    result = run_benchmark(
        "training_pipeline.py", "--model", tmp_path / "model", "--dataset", data, "--steps", 4,
        "--batch", 8, "--starts", 1, "--precision", "float32",
    )  # fmt: skip
    assert result["first_step"]["median_s"] > 0
    shares = result["shares"]  # a part of less than half a second is not among them
    assert {"outside", "seconds"} <= set(shares)
    assert sum(shares.values()) - shares["seconds"] == pytest.approx(1, abs=0.01)
