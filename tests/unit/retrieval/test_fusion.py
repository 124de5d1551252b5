"""Fusion of runs, by hand and as a command."""

import pytest

from tfde.cli.main import main
from tfde.errors import ConfigError
from tfde.retrieval.fusion import reciprocal_rank_fusion
from tfde.retrieval.runs import read_run, write_run

DENSE = {"q1": {"a": 0.9, "b": 0.8, "c": 0.1}, "q2": {"a": 0.5}}
SPARSE = {"q1": {"c": 20.0, "d": 12.0, "b": 11.0}, "q3": {"d": 1.0}}


def test_scores_are_sums_of_reciprocal_ranks():
    fused = reciprocal_rank_fusion([DENSE, SPARSE], constant=1)
    assert fused["q1"] == pytest.approx(
        {"a": 1 / 2, "b": 1 / 3 + 1 / 4, "c": 1 / 4 + 1 / 2, "d": 1 / 3}
    )
    assert fused["q2"] == {"a": 1 / 2}
    assert fused["q3"] == {"d": 1 / 2}
    assert DENSE["q1"] == {"a": 0.9, "b": 0.8, "c": 0.1}


def test_only_ranks_count():
    scaled = {q: {d: 7 * s - 3 for d, s in found.items()} for q, found in DENSE.items()}
    assert reciprocal_rank_fusion([scaled, SPARSE]) == reciprocal_rank_fusion([DENSE, SPARSE])


def test_what_is_refused():
    with pytest.raises(ConfigError, match="`runs` must be not empty"):
        reciprocal_rank_fusion([])
    with pytest.raises(ConfigError, match="`constant` must be at least 0"):
        reciprocal_rank_fusion([DENSE], constant=-1)


def test_the_command(tmp_path, capsys):
    for name, run in (("dense", DENSE), ("sparse", SPARSE)):
        write_run(tmp_path / f"{name}.trec", run)
    files = [
        "--run_file",
        str(tmp_path / "dense.trec"),
        "--run_file",
        str(tmp_path / "sparse.trec"),
    ]
    output = tmp_path / "fused.trec.gz"
    assert main(["fuse", *files, "--output", str(output), "-k", "2"]) == 0
    assert capsys.readouterr().out == f"{output}: 3 queries of 2 runs\n"
    fused = reciprocal_rank_fusion([DENSE, SPARSE])
    assert read_run(output)["q1"] == {name: fused["q1"][name] for name in ("c", "b")}
