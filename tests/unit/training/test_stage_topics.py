"""Topics that a stage finds by itself: as `tfde cluster-queries` finds them for a file."""

import dataclasses

import numpy as np
import pytest
import tiny

from tfde.cli.main import main
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.data.pairs.query_clusters import read_clusters
from tfde.errors import CorruptError
from tfde.training.run import train


@pytest.fixture
def run(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data"))  # 160 train queries of 200
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    rate = OptimizerConfig("adamw", 0.01, "constant")
    stage = StageConfig(data, steps=24, batch_size=8, topic_size=16, optimizer=rate)
    return TrainRun(ModelConfig(str(tmp_path / "start")), {"only": stage}, seed=3)


def replaced(run, **options):
    stage = dataclasses.replace(run.stages["only"], **options)
    return dataclasses.replace(run, stages={"only": stage})


def test_it_trains_as_by_a_file_of_clusters(tmp_path, run, capsys):
    found = train(run, tmp_path / "run", verbose=0).towers.named_weights()
    path, stage = tmp_path / "c.jsonl", run.stages["only"]
    command = ["cluster-queries", "--model", run.model.backbone, "--data", stage.data]
    command += ["--clusters", 10, "--min_size", 8, "--seed", 3, "--output", path]
    assert main([str(word) for word in command]) == 0
    assert " 160 queries in " in capsys.readouterr().out
    assert read_clusters(tmp_path / "run" / "topics" / "only.jsonl.gz") == read_clusters(path)
    by_file = replaced(run, topic_size=None, topic_clusters=str(path))
    weights = train(by_file, tmp_path / "by_file", verbose=0).towers.named_weights()
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, found[name])
    plain = train(replaced(run, topic_size=None), tmp_path / "plain", verbose=0)
    same = [np.array_equal(w, found[name]) for name, w in plain.towers.named_weights().items()]
    assert not all(same)


def test_fewer_queries_than_two_topics_are_one(tmp_path, run):
    train(replaced(run, topic_size=500), tmp_path / "run", verbose=0)
    clusters = read_clusters(tmp_path / "run" / "topics" / "only.jsonl.gz")
    assert set(clusters.values()) == {0}


def test_a_later_stage_finds_topics_with_the_model_that_it_begins_with(tmp_path, run):
    first = dataclasses.replace(run.stages["only"], topic_size=None)
    both = {"first": first, "second": run.stages["only"]}
    train(dataclasses.replace(run, stages=both), tmp_path / "both", verbose=0)
    train(dataclasses.replace(run, stages={"first": first}), tmp_path / "first", verbose=0)
    alone = ModelConfig(str(tmp_path / "first" / "model"))
    train(dataclasses.replace(run, model=alone), tmp_path / "second", verbose=0)
    found = read_clusters(tmp_path / "both" / "topics" / "second.jsonl.gz")
    assert found == read_clusters(tmp_path / "second" / "topics" / "only.jsonl.gz")
    train(run, tmp_path / "start_alone", verbose=0)
    assert found != read_clusters(tmp_path / "start_alone" / "topics" / "only.jsonl.gz")


def test_what_is_taken_up_has_the_topics_that_it_began_with(tmp_path, run):
    run = replaced(run, checkpoint_every_steps=5)
    whole = train(run, tmp_path / "whole", verbose=0).towers.named_weights()
    path = tmp_path / "run" / "topics" / "only.jsonl.gz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfde.training.callbacks.StageCallback.write", _stop)
        with pytest.raises(KeyboardInterrupt):
            train(replaced(run, log_every_steps=9), tmp_path / "run", verbose=0)
    before = path.read_bytes()
    model = train(replaced(run, log_every_steps=9), tmp_path / "run", verbose=0)
    assert path.read_bytes() == before
    for name, weight in model.towers.named_weights().items():
        np.testing.assert_array_equal(weight, whole[name])
    path.unlink()
    with pytest.raises(CorruptError, match=r"only\.jsonl\.gz: is missing; without these topics"):
        train(replaced(run, log_every_steps=9), tmp_path / "run", verbose=0)


def _stop(*args, **options):
    raise KeyboardInterrupt
