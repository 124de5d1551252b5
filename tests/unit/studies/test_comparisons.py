"""Places of a grid beside their baseline, from measures of queries that are written out here."""

import logging

import numpy as np
import pytest

from tfde.errors import ConfigError, CorruptError
from tfde.studies.comparisons import compare_with, format_comparisons
from tfde.studies.results import read_by_query, write_by_query
from tfde.studies.study_figures import draw_gains, relative_gains
from tfde.studies.study_tables import group_results

AXES = {"model": ["ade", "sde"], "labels": ["1%", "80%"]}
QUERIES = [f"q{n}" for n in range(40)]


def study(output, values):
    """A study whose cells (model, labels, seed) have these values of each query."""
    cells = []
    for (model, labels, seed), of_queries in values.items():
        key = f"{model}-{labels}-{seed}"
        found = {"query_ids": QUERIES[: len(of_queries)], "by_query": {"RR": list(of_queries)}}
        write_by_query(output, key, found)
        cells.append(
            {
                "axes": {"model": model, "labels": labels},
                "seed": seed,
                "hash": key,
                "measures": {"RR": float(np.mean(of_queries))},
                "seconds": {"evaluate": 1.0},
            }
        )
    return group_results(AXES, cells, cells)


def test_a_query_counts_with_its_mean_over_seeds(tmp_path):
    rng = np.random.default_rng(0)
    base, other = rng.random((2, 40)) / 2, rng.random((2, 40)) / 2
    other += 0.4
    results = study(
        tmp_path,
        {
            ("ade", "1%", 1): base[0], ("ade", "1%", 2): base[1],
            ("sde", "1%", 1): other[0], ("sde", "1%", 2): other[1],
            ("sde", "80%", 1): other[0],  # without a baseline
        },
    )  # fmt: skip
    (row,) = compare_with(tmp_path, results, "model", "ade")
    assert (row.values, row.baseline, row.measure) == (("sde", "1%"), "ade", "RR")
    differences = other.mean(axis=0) - base.mean(axis=0)
    assert row.comparison.difference.mean == pytest.approx(differences.mean())
    assert row.comparison.gains == (differences > 0).sum()
    assert row.corrected == row.comparison.p_value < 0.001
    table = format_comparisons(results, "model", [row])
    assert table.splitlines()[2].startswith("| sde, ade       | 1%     | RR ")


def test_one_result_in_two_places_is_not_compared_with_itself(tmp_path):
    results = study(tmp_path, {("ade", "1%", 1): [0.1, 0.2], ("sde", "1%", 1): [0.1, 0.2]})
    for group in results.groups:
        group.records[0]["hash"] = "ade-1%-1"
    with pytest.raises(ConfigError, match="nothing can be compared"):
        compare_with(tmp_path, results, "model", "ade")


def test_only_seeds_that_both_have_count(tmp_path):
    values = {
        ("ade", "1%", 1): [0.1] * 40, ("ade", "1%", 2): [0.9] * 40, ("sde", "1%", 1): [0.4] * 40,
    }  # fmt: skip
    results = study(tmp_path, values)
    (row,) = compare_with(tmp_path, results, "model", "ade")
    assert row.seeds == 1
    assert row.comparison.difference.mean == pytest.approx(0.3)


def test_other_queries_cannot_be_compared(tmp_path):
    results = study(tmp_path, {("ade", "1%", 1): [0.1, 0.2], ("sde", "1%", 1): [0.1, 0.2, 0.3]})
    with pytest.raises(ConfigError, match="nothing can be compared with model=ade yet"):
        compare_with(tmp_path, results, "model", "ade")


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("size", "ade", "`against` must be one of the axes model, labels. Received: 'size'"),
        ("model", "spl", "`against` must be model= one of ade, sde. Received: 'spl'"),
    ],
)
def test_what_there_is_not(tmp_path, axis, value, message):
    results = study(tmp_path, {("ade", "1%", 1): [0.1, 0.2]})
    with pytest.raises(ConfigError) as error:
        compare_with(tmp_path, results, axis, value)
    assert str(error.value) == message


def test_files_that_are_missing_or_damaged(tmp_path):
    results = study(tmp_path, {("ade", "1%", 1): [0.1], ("sde", "1%", 1): [0.2]})
    path = tmp_path / "queries" / "sde-1%-1.json.gz"
    assert read_by_query(tmp_path, "sde-1%-1") == {"RR": {"q0": 0.2}}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=r"sde-1%-1\.json\.gz: is damaged"):
        compare_with(tmp_path, results, "model", "ade")
    path.unlink()
    with pytest.raises(ConfigError, match="need the measures of each query"):
        read_by_query(tmp_path, "sde-1%-1")
    with pytest.raises(ConfigError, match="nothing can be compared with model=ade yet"):
        compare_with(tmp_path, results, "model", "ade")


def test_seeds_without_measures_of_queries_are_left_out_and_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tfde"), "propagate", True)
    values = {
        ("ade", "1%", 1): [0.1] * 40, ("ade", "1%", 2): [0.9] * 40,
        ("sde", "1%", 1): [0.4] * 40, ("sde", "1%", 2): [0.9] * 40,
    }  # fmt: skip
    results = study(tmp_path, values)
    (tmp_path / "queries" / "ade-1%-2.json.gz").unlink()
    with caplog.at_level("WARNING", logger="tfde"):
        (row,) = compare_with(tmp_path, results, "model", "ade")
    assert row.seeds == 1
    assert row.comparison.difference.mean == pytest.approx(0.3)
    assert "1 of 4 results have no measures of each query" in caplog.text


def test_gains_are_percent_of_the_baseline(tmp_path):
    values = {
        ("ade", "1%", 1): [0.2] * 40, ("ade", "80%", 1): [0.5] * 40,
        ("sde", "1%", 1): [0.3] * 40, ("sde", "80%", 1): [0.4] * 40,
    }  # fmt: skip
    results = study(tmp_path, values)
    rows = compare_with(tmp_path, results, "model", "ade")
    gains = relative_gains(results, rows, axis="model", measure="RR")
    assert gains == {
        (("1%",), "sde"): pytest.approx((50, 50, 50)),
        (("80%",), "sde"): pytest.approx((-20, -20, -20)),
    }
    path = tmp_path / "gains.png"
    draw_gains(results, rows, path, axis="model", measure="RR")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_gain_over_nothing(tmp_path):
    results = study(tmp_path, {("ade", "1%", 1): [0.0] * 40, ("sde", "1%", 1): [0.3] * 40})
    rows = compare_with(tmp_path, results, "model", "ade")
    with pytest.raises(ConfigError, match="`measure` must be one whose baseline is above 0"):
        relative_gains(results, rows, axis="model", measure="RR")
