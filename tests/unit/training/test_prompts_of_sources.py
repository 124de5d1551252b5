"""A prompt of a source: as if it stood in the files."""

import dataclasses
import json

import numpy as np
import pytest
import tiny

from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.pages import Page, Section, write_pages
from tfde.training.retrieval_validation import RetrievalValidation
from tfde.training.run import train
from tfde.training.stage_data import StageData

PROMPT = "amber basil "  # words of tiny's vocabulary


@pytest.fixture
def sets(tmp_path):
    """Two data sets, and the second once more with the prompt in its file."""
    names = ("one", "two", "written")
    paths = {name: tiny.write_dataset(tmp_path / name, documents=60) for name in names}
    file = paths["written"] / "queries.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**r, "text": PROMPT + r["text"]}) + "\n" for r in rows))
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize("homogeneous", [False, True])
def test_it_trains_as_on_queries_written_so(tmp_path, sets, homogeneous):
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    rate = OptimizerConfig("adamw", 0.01, "constant")

    def weights(name, **options):
        mixture = (SourceConfig(sets["one"]), SourceConfig(sets[name], **options))
        stage = StageConfig(
            mixture=mixture, homogeneous=homogeneous, steps=6, batch_size=8, optimizer=rate
        )
        run = TrainRun(ModelConfig(str(tmp_path / "start")), {"only": stage})
        model = train(run, tmp_path / f"{name}_{len(options)}", verbose=0)
        return {key: np.array(weight) for key, weight in model.towers.named_weights().items()}

    by_prompt = weights("two", query_prompt=PROMPT)
    for name, weight in weights("written").items():
        np.testing.assert_array_equal(weight, by_prompt[name])
    without = weights("two")
    assert any(not np.array_equal(without[name], by_prompt[name]) for name in without)


def test_pages_have_prompts_too(tmp_path):
    passages = tuple(f"The {word} falls. It was green." for word in ("amber", "basil", "cedar"))
    write_pages(tmp_path / "p.jsonl", [Page("p", "p", (Section("", passages),))])
    source = SourceConfig(pages=str(tmp_path / "p.jsonl"), tasks={"ict": 1.0}, query_prompt="say: ")
    stage = StageConfig(mixture=(source,), steps=1, batch_size=2)
    data = StageData(seed=0, stores=tmp_path / "stores")
    data.build_page_stores(TrainRun(ModelConfig({"kind": "bert"}), {"only": stage}))
    batches = data.batches(stage)
    plain = data.batches(
        dataclasses.replace(stage, mixture=(dataclasses.replace(source, query_prompt=""),))
    )
    assert batches.batch(0)["query"].tolist() == [
        b"say: " + query for query in plain.batch(0)["query"]
    ]
    assert next(batches.texts()) == "say: "
    assert len(batches) == len(plain)


def test_it_is_measured_as_on_queries_written_so(sets):
    model = tiny.dual_encoder()

    def measured(name, **options):
        home = ValidationConfig(sets[name], measures=("RR",), **options)
        guards = {"away": GuardConfig(sets[name], "dev", "RR", **options)}
        at_one = ValidationConfig(sets["one"], measures=("RR",), guards=guards)
        return RetrievalValidation(home)(model)["RR"], RetrievalValidation(at_one)(model)["away RR"]

    assert measured("two", query_prompt=PROMPT) == measured("written")
    assert measured("two") != measured("written")
