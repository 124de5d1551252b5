"""What a card says of a run: only what the model in its directory was measured at."""

import dataclasses
import json
import shutil

import pytest
import tiny
import yaml

from tfde.config import model, training
from tfde.training.training_card import _NULL_SAYS, write_training_cards


@pytest.fixture
def output(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "best_model")
    return tmp_path


def write_run(output, stages, history, competing=None):
    record = {"run": {"stages": {name: {} for name in stages}}, "versions": {}, "data": {}}
    (output / "run.json").write_text(json.dumps(record))
    (output / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    write_training_cards(output, command="tfde train", leading="RR", stages=competing)
    return [(output / name / "README.md").read_text() for name in ("model", "best_model")]


def test_last_and_best_of_the_stages_that_compete(output):
    history = [
        {"stage": "first", "step": 9, "RR": 0.9, "validated_on": "7 queries"},
        {"stage": "second", "step": 3, "RR": 0.7, "validated_on": "7 queries"},
        {"stage": "second", "step": 9, "RR": 0.6, "validated_on": "7 queries"},
    ]
    last, best = write_run(output, ["first", "second"], history, ["second"])
    said = "On the validation data (7 queries), at step 9 of stage second: RR 0.6000."
    assert said in last
    assert "at step 3 of stage second: RR 0.7000." in best
    last, best = write_run(output, ["first", "second"], history, ["first", "second"])
    assert "at step 9 of stage second: RR 0.6000." in last
    assert "at step 9 of stage first: RR 0.9000." in best


@pytest.mark.parametrize("kept", [0, 9])
def test_an_untouched_start_says_so(output, kept):
    history = [
        {"stage": "one", "step": 0, "RR": 0.9, "validated_on": "7 queries", "kept": True},
        {"stage": "one", "step": 9, "RR": 0.5, "validated_on": "7 queries", "kept": kept == 9},
    ]
    last, best = write_run(output, ["one"], history)
    said = "No training is in these weights: none was better than the start."
    assert said not in last
    assert (said in best) == (kept == 0)


def test_a_last_stage_that_was_not_validated(output):
    history = [
        {"stage": "first", "step": 9, "RR": 0.9, "validated_on": "7 queries"},
        {"stage": "second", "step": 9, "loss": 1},
    ]
    last, best = write_run(output, ["first", "second"], history)
    assert "On the validation data" not in last
    assert "at step 9 of stage first: RR 0.9000." in best


def test_null_is_kept_where_it_says_something(output):
    stage = {"optimizer": {"clip_norm": None}, "validation": {"max_queries": None, "seed": None}}
    record = {"run": {"stages": {"only": stage}}, "versions": {}, "data": {}}
    (output / "run.json").write_text(json.dumps(record))
    (output / "history.jsonl").write_text(json.dumps({"stage": "only", "step": 1}) + "\n")
    write_training_cards(output, command="tfde train", leading=None)
    card = (output / "model" / "README.md").read_text()
    found = yaml.safe_load(card.split("```yaml")[1].split("```")[0])["stages"]["only"]
    assert found == {"optimizer": {"clip_norm": None}, "validation": {"max_queries": None}}


def test_these_are_the_fields_whose_null_is_not_the_default():
    kinds = [kind for module in (model, training) for kind in vars(module).values()]
    fields = [
        f for kind in kinds if dataclasses.is_dataclass(kind) for f in dataclasses.fields(kind)
    ]
    other = {f.name for f in fields if "None" in str(f.type) and f.default is not None}
    assert other == _NULL_SAYS
