"""A study that is killed and given again: what is done is kept, the rest is that of plain runs."""

import csv
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny
import yaml

from tfde.cli.main import main
from tfde.config.study import StudyConfig, VocabularyConfig
from tfde.data.pages import Page, Section, write_pages
from tfde.studies.cells import expand_cells, merge
from tfde.studies.run_cell import measure
from tfde.studies.study import run_study
from tfde.training.run import train

PASSAGES = tuple(
    f"The {one} is {two}. A {two} {three} here. One {three} of {one}."
    for one, two, three in zip(tiny.WORDS, tiny.WORDS[5:], tiny.WORDS[11:], strict=False)
)
BERT = {"kind": "bert", "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}


def description(folder):
    common = {"batch_size": 16, "checkpoint_every_steps": 10, "log_every_steps": 5}
    stages = {
        "pretrain": {
            "mixture": [{"pages": str(folder / "pages.jsonl"), "tasks": {"ict": 1}}],
            "steps": 30,
            **common,
        },
        "finetune": {"data": str(folder / "data"), "steps": 60, **common},
    }
    model = {"backbone": {**BERT, "dropout": 0.0}, "embedding_dim": 8}
    evaluate = {"dataset": str(folder / "data"), "split": "dev", "measures": ["RR", "R@5"]}
    return {
        "vocabulary": {"texts": str(folder / "data"), "size": 50},
        "base": {"model": model, "stages": stages, "deterministic": True, "evaluate": evaluate},
        "axes": {
            "encoder": {"bert": {}, "bm25": {"model": "bm25"}},
            "labels": {
                "few": {"stages": {"finetune": {"limit": 40}}},
                "all": {},
            },
        },
        "cells": [{"encoder": "bert"}],
        "keep_models": True,
    }


def wait_for(process, ready):
    deadline = time.monotonic() + 300
    while not ready():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.kill
def test_killed_and_given_again(tmp_path, capsys, caplog, monkeypatch):
    tiny.write_dataset(tmp_path / "data")
    write_pages(
        tmp_path / "pages.jsonl",
        [Page(f"p{i}", "", (Section("", PASSAGES[i::4]),)) for i in range(4)],
    )
    described = description(tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    output = tmp_path / "out"
    arguments = ["study", "--run", str(tmp_path / "study.yaml"), "--output", str(output)]
    results = output / "results.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "tfde.cli.main", *arguments], stderr=subprocess.PIPE, text=True
    )
    # Killed in the fine-tuning of the second cell, after its first checkpoint.
    wait_for(process, results.exists)
    wait_for(process, lambda: len(list(output.glob("trained/*/checkpoint.safetensors"))) == 1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    first = results.read_bytes()
    assert first.count(b"\n") == 1
    trained = list(output.glob("trained/*/done.json"))
    assert len(trained) == 2  # what both begin with, and the first cell's fine-tuning
    written = {path: path.stat().st_mtime_ns for path in trained}

    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert results.read_bytes().startswith(first)
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert [record["axes"]["labels"] for record in records] == ["few", "all"]
    for path, time_ns in written.items():
        assert path.stat().st_mtime_ns == time_ns
    assert len(list(output.glob("trained/*/done.json"))) == 3
    assert "2 of 2 cells are done." in table
    assert f"{records[1]['measures']['RR']:.4f}" in table

    for record in records:
        assert record["steps"] == {"pretrain": 30, "finetune": 60}
        assert (record["queries"], record["documents"]) == (40, 200)
        assert record["parameters"] > 50 * 8
    assert records[0]["measures"] != records[1]["measures"]

    # The run of the cell that was killed, in one piece and without a study.
    study = StudyConfig(**{**described, "vocabulary": VocabularyConfig(**described["vocabulary"])})
    vocabulary = str(*output.glob("vocabulary-*.model"))
    base = merge(described["base"], {"model": {"tokenizer": vocabulary}})
    cell = expand_cells(StudyConfig(base, described["axes"], described["cells"]))[1]
    train(cell.run, tmp_path / "whole", verbose=0)
    expected = measure(tmp_path / "whole" / "model", cell.evaluation)
    assert records[1]["measures"] == expected["measures"]

    # Both cells at the same time; the second begins when the first has trained what both need.
    assert main([*arguments[:-1], str(tmp_path / "together"), "--jobs", "2"]) == 0
    together = (tmp_path / "together" / "results.jsonl").read_text().splitlines()
    for record in map(json.loads, together):
        (same,) = [other for other in records if other["hash"] == record["hash"]]
        assert record["measures"] == same["measures"]
    assert len(list((tmp_path / "together").glob("trained/*/done.json"))) == 3
    assert "2 of 2 cells are done." in capsys.readouterr().out

    # What was kept stays when the study is given again without that, but not what led to it.
    kept = {record["model"] for record in records}
    assert all((output / model / "config.json").exists() for model in kept)
    without = StudyConfig(**{**vars(study), "keep_models": False})
    run_study(without, output)
    assert {str(path.relative_to(output)) for path in output.glob("trained/*/model")} == kept
    # Without it from the beginning, nothing stays and no line says where a model lies.
    run_study(without, tmp_path / "without")
    assert list((tmp_path / "without" / "trained").iterdir()) == []
    lines = (tmp_path / "without" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["model"] for line in lines] == [None, None]
    monkeypatch.setattr(logging.getLogger("tfde"), "propagate", True)  # which commands turn off
    with caplog.at_level("WARNING", logger="tfde"):
        run_study(study, tmp_path / "without")
    assert "2 cells are done and their models were not kept" in caplog.text
    assert results.read_text().count("\n") == 2
    against = ["--against", "labels=few", "--csv", str(tmp_path / "table.csv")]
    assert main(["study", "--output", str(output), "--table", *against]) == 0
    again = capsys.readouterr().out
    end = "2 of 2 cells are done.\n"
    assert again.partition(end)[0] == table.partition(end)[0]
    assert f"- data: {tmp_path / 'data'} (sha256 corpus.jsonl " in again
    pages = hashlib.sha256((tmp_path / "pages.jsonl").read_bytes()).hexdigest()
    assert f"- data: {tmp_path / 'pages.jsonl'} (sha256 {pages[:12]})\n" in again
    # The difference is that of the two measures, and the file says the same.
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = {(row["labels"], row["measure"]): row for row in csv.DictReader(file)}
    difference = records[1]["measures"]["RR"] - records[0]["measures"]["RR"]
    row = rows["all", "RR"]
    assert float(row["mean"]) == records[1]["measures"]["RR"]
    assert float(row["difference"]) == pytest.approx(difference, abs=1e-9)
    assert float(row["low"]) <= difference <= float(row["high"])
    assert (row["against"], rows["few", "RR"]["against"]) == ("few", "")
    assert f" {difference:+.4f} |" in again
