"""A run that an earlier version began goes on, though descriptions have fields it did not know."""

import dataclasses
import json
import shutil

import pytest
import tiny

from tfde.config.losses import GuideConfig
from tfde.config.negatives import RefreshConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.errors import OtherRunError
from tfde.training.run_record import CHECKPOINT_FILE, RUN_FILE, data_checksums, open_output

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


def test_answers_count_where_a_measure_needs_them(tmp_path):
    path = tiny.write_dataset(tmp_path / "data", documents=3)
    file = path / "answers.jsonl"

    def sums(measures=("P@1",), guard="nDCG@10"):
        validation = ValidationConfig(
            str(path), measures=measures, guards={"away": GuardConfig(str(path), measure=guard)}
        )
        stage = StageConfig(str(path), steps=4, validation=validation)
        return data_checksums(TrainRun(ModelConfig("start"), {"only": stage}))

    file.write_text('{"_id": "q0", "answers": ["red"]}\n')
    before = [sums(), sums(("P@1", "Answer@5")), sums(guard="Answer@1")]
    assert set(before[0]) == {str(path)}
    assert before[1] == before[2]
    file.write_text('{"_id": "q0", "answers": ["blue"]}\n')
    assert sums() == before[0]
    assert sums(("P@1", "Answer@5")) != before[1]
    assert sums(guard="Answer@1") != before[2]


def test_a_run_goes_on_wherever_its_data_lie(tmp_path, monkeypatch):
    """Paths may count from another directory, and data may be moved; other bytes are refused."""
    tiny.write_dataset(tmp_path / "one" / "data", documents=3)
    shutil.copytree(tmp_path / "one" / "data", tmp_path / "two" / "place")

    def opened(path, steps=4):
        stage = StageConfig(path, steps=steps, validation=ValidationConfig(path))
        run = TrainRun(ModelConfig("start"), {"only": stage})
        with open_output(tmp_path / "out", run, data_checksums(run)):
            (tmp_path / "out" / CHECKPOINT_FILE).touch()

    monkeypatch.chdir(tmp_path / "one")
    opened("data")
    opened(str(tmp_path / "one" / "data"))
    monkeypatch.chdir(tmp_path)
    opened("two/place")
    with pytest.raises(OtherRunError, match="data was 'data', is 'two/place'"):
        opened("two/place", steps=5)
    with (tmp_path / "two" / "place" / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "red"}\n')
    with pytest.raises(OtherRunError, match="data was 'data', is 'two/place'"):
        opened("two/place")
