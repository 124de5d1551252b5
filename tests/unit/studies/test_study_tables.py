"""Tables from numbers that are written out here."""

import json

import pytest

from tfde.errors import ConfigError, CorruptError, DataError
from tfde.studies.study_figures import draw_results
from tfde.studies.study_tables import format_origin, format_results, group_results, load_results

AXES = {"start": ["none", "ict"], "labels": ["1%", "80%"]}


def record(start, labels, seed, value, *, key="h", seconds=None):
    return {
        "axes": {"start": start, "labels": labels},
        "seed": seed,
        "hash": key,
        "measures": {"R@1": value, "R@10": value + 0.2},
        "seconds": seconds or {"finetune": 10.4, "evaluate": 3.0},
    }


RECORDS = [
    record("ict", "80%", 1, 0.5, seconds={"pretrain": 60.0, "finetune": 10.0, "evaluate": 4.0}),
    record("none", "1%", 2, 0.2),
    record("none", "1%", 1, 0.1),
    record("none", "1%", 3, 0.3, seconds={"finetune": 12.4, "evaluate": 6.0}),
    record("none", "1%", 3, 0.9, key="of an older description"),
]
CELLS = [record(start, labels, seed, 0.0) for start in AXES["start"] for labels in AXES["labels"]
         for seed in (1, 2, 3)]  # fmt: skip


def test_means_and_spread_over_seeds():
    # 0.1, 0.2, 0.3: mean 0.2, sample standard deviation sqrt((0.01 + 0 + 0.01) / 2) = 0.1.
    # Seconds: (10.4 + 10.4 + 12.4) / 3 = 11.07 and (3 + 3 + 6) / 3 = 4.
    assert format_results(group_results(AXES, CELLS, RECORDS)) == (
        "| start | labels |             R@1 |            R@10 | seeds | pretrain, s | finetune, s |"
        " evaluate, s |\n"
        "|-------|--------|----------------:|----------------:|------:|------------:|------------:|"
        "------------:|\n"
        "| none  | 1%     | 0.2000 ± 0.1000 | 0.4000 ± 0.1000 |     3 |           - |          11 |"
        "           4 |\n"
        "| ict   | 80%    |          0.5000 |          0.7000 |     1 |          60 |          10 |"
        "           4 |\n"
        "\n"
        "4 of 12 cells are done."
    )


def test_the_first_result_of_a_cell_counts():
    again = record("ict", "80%", 1, 0.7)
    results = group_results(AXES, CELLS, [*RECORDS, again])
    assert results.done == 4
    assert results.groups[-1].mean("R@1") == 0.5
    assert results.groups[-1].spread("R@1") is None


def test_nothing_to_show(tmp_path):
    with pytest.raises(ConfigError, match="the study has no result yet"):
        format_results(group_results(AXES, CELLS, []))
    with pytest.raises(ConfigError, match=r"must hold study\.json, as `tfde study --run` writes"):
        load_results(tmp_path)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "study.json").write_text('{"axes": {')
    with pytest.raises(CorruptError, match=r"study\.json: does not hold a JSON object"):
        load_results(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps({"axes": AXES, "cells": CELLS}))
    line = {name: value for name, value in RECORDS[0].items() if name != "seconds"}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"results\.jsonl:1: must be a record with axes, .*seconds"):
        load_results(tmp_path)


def test_names_in_a_figure_are_no_formulas(tmp_path):
    odd = "_$\\a$"
    axes = {"_$x$": [odd, "b"], "$": ["$$", "c"]}
    records = [
        {**record("", "", seed, 0.5), "axes": {"_$x$": one, "$": other}}
        for one in (odd, "b") for other in ("$$", "c") for seed in (1, 2)
    ]  # fmt: skip
    results = group_results(axes, records, records)
    draw_results(results, tmp_path / "figure.png", measure="R@10")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_is_drawn(tmp_path):
    of_other_measures = {**record("none", "80%", 1, 0.3), "measures": {"RR": 0.3}}
    records = [*RECORDS, record("ict", "1%", 1, 0.4), of_other_measures]
    results = group_results(AXES, CELLS, records)
    path = tmp_path / "figure.png"
    draw_results(results, path, measure="R@10")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"`measure` must be one of R@1, R@10, RR\. Received: 'P"):
        draw_results(results, path, measure="P@1")
    one = group_results({"start": ["none"]}, [], [])
    with pytest.raises(ConfigError, match=r"a figure needs at least two axes\. Received: start"):
        draw_results(one, path, measure="R@1")


def test_a_panel_without_training_is_a_line_of_the_others(tmp_path):
    axes = {"encoder": ["small", "bm25"], "start": ["none"], "labels": ["1%", "80%"]}
    records = []
    for encoder, seconds in (("small", {"finetune": 1.0}), ("bm25", {"evaluate": 1.0})):
        for labels in axes["labels"]:
            cell = record("none", labels, 1, 0.5, seconds=seconds)
            cell["axes"] = {"encoder": encoder, **cell["axes"]}
            records.append(cell)
    draw_results(group_results(axes, records, records), tmp_path / "two.svg", measure="R@1")
    draw_results(group_results(axes, records[2:], records[2:]), tmp_path / "one.svg", measure="R@1")
    # matplotlib writes each text as a comment beside its outlines.
    two, one = ((tmp_path / name).read_text() for name in ("two.svg", "one.svg"))
    assert [two.count(f"<!-- {name} -->") for name in ("small", "bm25", "labels")] == [1, 1, 1]
    assert [two.count('<g id="axes_1">'), two.count('<g id="axes_2">')] == [1, 0]
    assert [one.count(f"<!-- {name} -->") for name in ("bm25", "none")] == [1, 1]


def test_time_counts_each_training_once():
    stages = {"pretrain": "p1", "finetune": "f1"}
    seconds = {"pretrain": 3600.0, "finetune": 1800.0, "evaluate": 900.0}
    one = record("ict", "1%", 1, 0.5, key="a", seconds=seconds)
    two = record("ict", "80%", 1, 0.6, key="b", seconds=seconds)  # the same model, elsewhere
    for cell in (one, two):
        cell |= {"stages": stages, "steps": {"pretrain": 1, "finetune": 1}, "commit": "c1"}
    two["commit"] = "c2"
    text = format_origin(group_results(AXES, [one, two], [one, two]), "tfde study")
    assert "- time: 2.00 h" in text  # 1 + 0.5 + 2 x 0.25
    assert "- commit: c1, c2" in text
