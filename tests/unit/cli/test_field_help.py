"""`--run.PART.help`: the fields of each part of a run, and what they mean."""

import dataclasses

import pytest

from tfde.cli.field_help import format_fields, part_of
from tfde.cli.main import main
from tfde.config.losses import GuideConfig
from tfde.config.matching import MatchRun, TeachingConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.errors import ConfigError


@pytest.mark.parametrize(
    ("run", "place", "part"),
    [
        (TrainRun, "stages", StageConfig),
        (TrainRun, "stages.finetune", StageConfig),
        (TrainRun, "stages.optimizer", OptimizerConfig),
        (TrainRun, "stages.finetune.validation", ValidationConfig),
        (TrainRun, "stages.validation.guards", GuardConfig),
        (TrainRun, "stages.finetune.validation.guards.scifact", GuardConfig),
        (TrainRun, "stages.guide", GuideConfig),
        (MatchRun, "teaching", TeachingConfig),
    ],
)
def test_every_field_of_a_part_is_told_with_its_meaning(run, place, part):
    assert part_of(run, place.split(".")) is part
    text = format_fields(part, place)
    for field in dataclasses.fields(part):
        (line,) = [x for x in text.splitlines() if x.split()[:1] == [field.name] and x[2] != " "]
        assert not line.partition(field.name)[2].strip().startswith("(")  # first its meaning
    assert max(map(len, text.splitlines()[1:])) <= 80


@pytest.mark.parametrize("place", ["stages.steps", "nowhere", "stages.a.b"])
def test_what_has_no_fields_says_what_has(place):
    rule = r"'\w+' has no fields of its own; those that have: \w+, "
    with pytest.raises(ConfigError, match=rule):
        part_of(TrainRun, place.split("."))


def test_the_commands_show_it(capsys):
    for command, place, word in (
        ("train", "stages.finetune.validation", "max_queries"),
        ("train", "stages", "Its fields: --run.stages.validation.help"),
        ("train-matcher", "optimizer", "learning_rate"),
        ("phrases train", "model", "backbone"),
        ("study", "vocabulary", "size"),
    ):
        with pytest.raises(SystemExit) as caught:
            main([*command.split(), f"--run.{place}.help"])
        assert caught.value.code == 0
        assert word in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["train", "--run.stages.steps.help"])
    assert caught.value.code == 2
