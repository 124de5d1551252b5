"""Fusion of runs, by hand and as a command."""

import math

import pytest

from tfde.cli.main import main
from tfde.errors import ConfigError
from tfde.retrieval.fusion import reciprocal_rank_fusion, weighted_score_fusion
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


def test_scores_are_weighted_sums_of_scaled_scores():
    fused = weighted_score_fusion([DENSE, SPARSE], [1.0, 0.5])
    # Scaled: a 1, b 7/8, c 0; and c 1, d 1/9, b 0.
    assert fused["q1"] == pytest.approx({"a": 1.0, "b": 0.875, "c": 0.5, "d": 0.5 / 9})
    assert fused["q2"] == {"a": 1.0}
    assert fused["q3"] == {"d": 0.5}
    assert DENSE["q1"] == {"a": 0.9, "b": 0.8, "c": 0.1}


def test_only_differences_within_a_run_count():
    scaled = {q: {d: 7 * s - 3 for d, s in found.items()} for q, found in DENSE.items()}
    fused = weighted_score_fusion([scaled, SPARSE], [1, 2])
    expected = weighted_score_fusion([DENSE, SPARSE], [1, 2])
    assert fused.keys() == expected.keys()
    for query_id, scores in expected.items():
        assert fused[query_id] == pytest.approx(scores)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, 1.0, 1.0], [1.0, -1.0]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ConfigError, match="`weights` must be 2 numbers above 0, one for each run"):
        weighted_score_fusion([DENSE, SPARSE], weights)


def test_what_is_refused():
    with pytest.raises(ConfigError, match="`runs` must be not empty"):
        weighted_score_fusion([], [])
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


def fuse(folder, *names):
    files = [text for name in names for text in ("--run_file", str(folder / name))]
    return main(["fuse", *files, "--output", str(folder / "fused.trec")])


def test_runs_that_do_not_belong_together(tmp_path, capsys):
    for name, run in {"a": {"q1": {"d": 1.0}, "q2": {"d": 1.0}}, "b": {"q3": {"d": 1.0}}}.items():
        write_run(tmp_path / name, run)
    (tmp_path / "empty").write_text("")
    for other, message in (("empty", "empty: a run must hold results"), ("b", "no query in all")):
        assert fuse(tmp_path, "a", other) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "fused.trec").exists()
    write_run(tmp_path / "c", {"q2": {"d": 1.0}})
    assert fuse(tmp_path, "a", "c") == 0
    assert "fuse: 1 of 2 queries are not in all runs" in capsys.readouterr().err


def test_a_directory_is_no_output(tmp_path, capsys):
    write_run(tmp_path / "a", DENSE)
    (tmp_path / "fused.trec").mkdir()
    assert fuse(tmp_path, "a") == 1
    assert "the output must be a file, but a directory stands there." in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "fused.trec"]


def test_the_command_with_weights(tmp_path, capsys):
    files = []
    for name, run in (("dense", DENSE), ("sparse", SPARSE)):
        write_run(tmp_path / f"{name}.trec", run)
        files += ["--run_file", str(tmp_path / f"{name}.trec")]
    output = ["--output", str(tmp_path / "fused.trec")]
    assert main(["fuse", *files, "--weights", "1", "0.5", *output]) == 0
    found = read_run(tmp_path / "fused.trec")["q1"]
    assert found == pytest.approx({"a": 1.0, "b": 0.875, "c": 0.5, "d": 0.5 / 9}, abs=1e-4)
    capsys.readouterr()
    assert main(["fuse", *files, "--weights", "1", *output]) == 1
    assert "`weights` must be 2 numbers above 0" in capsys.readouterr().err
    assert main(["fuse", *files, "--weights", "1", "1", "--constant", "9", *output]) == 1
    assert "`constant` must be left out beside `weights`" in capsys.readouterr().err


def test_weights_count_by_their_ratios_alone():
    run = {"q": {"d1": 3.0, "d2": 5.0, "d3": -5.0, "d0": 9.0}}
    expected = weighted_score_fusion([run, run], [1, 3])
    for weights in ([1e-60, 3e-60], [1e300, 3e300]):
        found = weighted_score_fusion([run, run], weights)
        assert found["q"] == pytest.approx(expected["q"])
    with pytest.raises(ConfigError, match="1 numbers above 0"):
        weighted_score_fusion([run], [math.inf])


def test_scores_far_apart():
    run = {"q": {"d1": 1.7e308, "d2": -1.7e308, "d3": 0.0}}
    assert weighted_score_fusion([run], [1])["q"] == {"d1": 1.0, "d2": 0.0, "d3": 0.5}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_run_is_packed_by_its_name(tmp_path, suffix):
    path = tmp_path / f"run.trec{suffix}"
    write_run(path, DENSE)
    assert read_run(path) == DENSE
    assert path.read_bytes()[:2] == {"": b"q1", ".gz": b"\x1f\x8b", ".zst": b"\x28\xb5"}[suffix]
