"""The page of results says what the studies' files say."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "results_page.py"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("results_page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_table_is_made_anew_and_the_rest_is_left_alone(script):
    page = script.PAGE.read_text("utf-8")
    assert "0.5907" in page
    changed = page.replace("0.5907", "0.9999")
    assert changed.count("0.9999") > 1
    assert script.generate(changed).count("0.9999") == 0  # it stands in tables only
    assert script.generate("before <!-- end --> after") == "before <!-- end --> after"


def test_differences_are_those_of_the_file(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "docs/studies/s").mkdir(parents=True)
    (tmp_path / "docs/studies/s/against_sharing.csv").write_text(
        "data,sharing,measure,mean,spread,seeds,against,difference,low,high,p,corrected,common_seeds\n"
        "squad,ade,RR,0.5,,3,,,,,,,\n"
        "squad,sde,RR,0.6,,5,ade,0.1,0.05,0.15,0.0002,0.0004,3\n"
        "squad,sde,P@1,0.6,,5,ade,0.2,0.05,0.15,0.0002,0.0004,3\n"
    )
    page = script.generate("<!-- table: compared s sharing RR -->\nold\n<!-- end -->\n")
    assert "| squad | sde     | ade     | RR      |    +0.1000 | [+0.0500, +0.1500] |" in page
    assert "0.0004 |     3 |" in page
    assert "corrected by Benjamini and Hochberg for 2 comparisons" in page
    assert "0.2000" not in page
    assert "old" not in page


def test_programs_have_tables_of_their_own(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    figures = tmp_path / "docs" / "figures"
    figures.mkdir(parents=True)
    found = [("a", "BM25", 0.5), ("a", "dense", 0.25), ("b", "BM25", 0.7), ("b", "dense", 0.75)]
    records = [{"set": s, "system": system, "R@100": value} for s, system, value in found]
    (figures / "zero_shot.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    row = {"parameters": 1_234_567, "question_ms": 3.21, "documents_per_s": 99.6}
    (figures / "encoders_float32.json").write_text(json.dumps({"rows": {"small": row}}))
    row |= {"question_ms": 2.0, "documents_per_s": 1234.5}
    (figures / "encoders_bfloat16.json").write_text(json.dumps({"rows": {"small": row}}))
    tables = ("zero_shot R@100", "encoders float32 bfloat16")
    page = script.generate("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in tables))
    assert "| a | 0.5000 | 0.2500 |" in page
    assert "| mean | 0.6000 | 0.5000 |" in page
    (line,) = (line for line in page.splitlines() if line.startswith("| small "))
    assert line.replace(" ", "") == "|small|1.2M|3.2|100|2.0|1,234|"


def test_a_study_names_what_it_is_from(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    folder = tmp_path / "docs/studies/s"
    folder.mkdir(parents=True)
    record = {"axes": {"size": "small"}, "seed": 1, "hash": "h", "measures": {"RR": 0.5}}
    record |= {"seconds": {"evaluate": 36.0}, "commit": "c0ffee"}
    (folder / "results.jsonl").write_text(json.dumps(record) + "\n")
    cells = [
        {name: record[name] for name in ("axes", "seed", "hash")} | {"seed": s} for s in (1, 2)
    ]
    data = {"${DATA}/set": {"corpus.jsonl": "0123456789abcdef"}}
    about = {"axes": {"size": ["small"]}, "cells": cells, "data": data}
    (folder / "study.json").write_text(json.dumps(about))
    page = script.generate("<!-- table: study s -->\n<!-- end -->\n")
    assert "- command: `tfde study --run pipelines/studies/s.yaml --output studies/s`" in page
    assert "- commit: c0ffee" in page
    assert "- data: ${DATA}/set (sha256 corpus.jsonl 0123456789ab)" in page
    assert "1 of 2 cells are done." in page
    assert "- time: 0.01 h" in page
