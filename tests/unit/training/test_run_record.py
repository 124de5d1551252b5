"""A run that an earlier version began goes on, though descriptions have fields it did not know."""

import dataclasses
import json

import pytest

from tfde.config.losses import GuideConfig
from tfde.config.negatives import RefreshConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.config.validation import ValidationConfig
from tfde.errors import OtherRunError
from tfde.training.run_record import CHECKPOINT_FILE, RUN_FILE, open_output

STAGE = StageConfig(
    "data",
    steps=4,
    negatives_per_query=1,
    refresh=RefreshConfig(every_steps=2),
    validation=ValidationConfig("data"),
)
RUN = TrainRun(ModelConfig("start"), {"only": STAGE})


def test_fields_that_came_later_have_their_defaults(tmp_path):
    with open_output(tmp_path, RUN, {}):
        (tmp_path / CHECKPOINT_FILE).touch()
    record = json.loads((tmp_path / RUN_FILE).read_text())
    stage = record["run"]["stages"]["only"]
    del record["run"]["collective_timeout_s"], stage["guide"], stage["matryoshka"]
    del stage["refresh"]["nearly_equal"], stage["validation"]["measures"], stage["optimizer"]
    (tmp_path / RUN_FILE).write_text(json.dumps(record))
    with open_output(tmp_path, RUN, {}):
        pass
    for other, message in (
        ({"guide": GuideConfig()}, r"run\.stages\.only\.guide was None, is \{'model'"),
        (
            {"refresh": RefreshConfig(every_steps=2, nearly_equal=0.5)},
            r"run\.stages\.only\.refresh\.nearly_equal was 0\.7, is 0\.5",
        ),
    ):
        run = TrainRun(RUN.model, {"only": dataclasses.replace(STAGE, **other)})
        with (
            pytest.raises(OtherRunError, match=rf"holds another run \({message}"),
            open_output(tmp_path, run, {}),
        ):
            pass
