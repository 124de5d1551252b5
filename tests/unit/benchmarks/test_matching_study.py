"""The study of matching: every cell is a run that the command takes; tables of what is there."""

import argparse
import json
from pathlib import Path

import pytest

from tfde.cli import train_matcher

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("TFDE_DATA", str(tmp_path))
    import matching_study

    return matching_study


def test_each_cell_is_a_run_and_has_the_papers_baseline(study, tmp_path):
    args = argparse.Namespace(
        output=tmp_path / "out", epochs=2, precision="float32", learning_rate=3e-4,
        virt_weight=1.0, fusion="concat", seeds=[1, 2, 3], starts=list(study.STARTS),
    )  # fmt: skip
    cells = list(study.cells(args.seeds, args.starts))
    assert len({cell.name for cell in cells}) == len(cells)
    tasks = study.tasks(args.output)
    parser = train_matcher.build_parser()
    for cell in (cell for cell in cells if cell.seed == 1 and cell.task in ("sick_nli", "stsb")):
        path = tmp_path / "recipe.json"
        path.write_text(json.dumps(study.recipe(cell, tasks[cell.task], args)))
        arguments = parser.parse_args(["--run", str(path), "--output", "x"])
        run = parser.instantiate(arguments).run
        assert (run.optimizer.epsilon, run.optimizer.clip_norm) == (1e-8, None)
        if cell.kind == "cross_encoder":
            assert run.teaching is None
            continue
        assert run.model.options == {"fusion": "concat"}
        taught = run.teaching
        assert (taught is not None) == (cell.virt or cell.kind in ("deformer", "dipair"))
        if taught is not None:
            assert taught.models == (str(args.output / cell.teacher.name / "best_model"),)
            assert (taught.virt_weight, taught.hidden_weight) == (
                float(cell.virt), float(cell.kind == "deformer")
            )  # fmt: skip
        assert ("start" in run.model.backbone) == (cell.start == "mlm")


def test_tables_of_two_starts_and_of_a_set_with_two_measures(study):
    from matching_tables import tables

    cell = {"task": "mrpc", "kind": "siamese", "virt": False, "seed": 1}
    found = tables([
        {**cell, "test": {"accuracy": 0.75}},  # of 0.1.0, which had no F1
        {**cell, "start": "mlm", "test": {"accuracy": 0.5, "F1": 0.8}},
    ])  # fmt: skip
    assert "| Siamese | 75.0 | - |" in found["Table 1"]
    assert "| | mrpc (accuracy) | mrpc (F1) |" in found["Table 1, start mlm"]
    assert "| Siamese | 50.0 | 80.0 |" in found["Table 1, start mlm"]
