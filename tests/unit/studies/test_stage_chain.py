"""A run taken apart into its stages ends with the weights of the whole run."""

import dataclasses
import functools
import json
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import tiny

from tfde.config.optimizer import OptimizerConfig
from tfde.config.study import EvaluationConfig
from tfde.config.training import AnchorConfig, ModelConfig, StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pages import Page, Section, write_pages
from tfde.errors import ConfigError
from tfde.studies.cells import Cell
from tfde.studies.run_cell import do_cell, measure, stage_chain, train_stage
from tfde.studies.study_checks import check_cells
from tfde.training.run import train
from tfde.training.run_record import checksum

BERT = {"kind": "bert", "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    tiny.write_dataset(folder / "data", documents=60)
    (folder / "vocab.txt").write_text("\n".join(tiny.VOCABULARY) + "\n")
    return folder


def run_of(folder, *, dropout=0.0, seed=5, **second):
    data = str(folder / "data")
    common = {"batch_size": 16, "checkpoint_every_steps": 8, "log_every_steps": 4}
    adamw = OptimizerConfig("adamw", learning_rate=0.01, warmup_steps=2)
    return TrainRun(
        ModelConfig({**BERT, "dropout": dropout}, str(folder / "vocab.txt"), embedding_dim=4),
        {
            "first": StageConfig(data, steps=10, optimizer=adamw, **common),
            "second": StageConfig(data, **{"steps": 8, **second}, **common),
        },
        seed=seed,
        deterministic=True,
    )


def weights(model):
    arrays = {}
    with h5py.File(model / "model.weights.h5") as file:
        file.visititems(
            lambda name, item: (
                arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return arrays


def test_stage_by_stage_is_the_whole_run(tmp_path, folder):
    run = run_of(folder)
    train(run, tmp_path / "whole", verbose=0)
    chain = stage_chain(run, tmp_path / "trained")
    assert [stage.name for stage in chain] == ["first", "second"]
    assert [train_stage(stage)["steps"] for stage in chain] == [10, 8]
    expected = weights(tmp_path / "whole" / "model")
    actual = weights(chain[-1].path / "model")
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
    # What is done is not done again, and only what is needed stays.
    written = (chain[0].path / "model" / "model.weights.h5").stat().st_mtime_ns
    assert train_stage(chain[0])["steps"] == 10
    assert (chain[0].path / "model" / "model.weights.h5").stat().st_mtime_ns == written
    left = {path.name for path in chain[0].path.iterdir() if not path.name.startswith(".")}
    assert left == {"run.json", "history.jsonl", "model", "done.json"}


def test_a_later_stage_is_anchored_to_the_start_of_the_run(tmp_path, folder):
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    run = run_of(folder, anchor=AnchorConfig(embedding_weight=5.0))
    run = dataclasses.replace(run, model=ModelConfig(str(tmp_path / "start")))
    train(run, tmp_path / "whole", verbose=0)
    chain = stage_chain(run, tmp_path / "trained")
    assert chain[1].run.stages["second"].anchor.model == str(tmp_path / "start")
    for stage in chain:
        train_stage(stage)
    actual = weights(chain[-1].path / "model")
    for name, array in weights(tmp_path / "whole" / "model").items():
        np.testing.assert_allclose(actual[name], array, atol=1e-6, err_msg=name)


def test_an_interrupted_stage_of_a_study_that_was_moved_is_done_anew(tmp_path, folder):
    run = run_of(folder)
    chain = stage_chain(run, tmp_path / "before" / "trained")
    train_stage(chain[0])
    train(chain[1].run, chain[1].path, verbose=0)  # killed before it was marked as done
    expected = weights(chain[1].path / "model")
    (tmp_path / "before").rename(tmp_path / "after")
    moved = stage_chain(run, tmp_path / "after" / "trained")
    assert train_stage(moved[1])["steps"] == 8
    for name, array in weights(moved[1].path / "model").items():
        np.testing.assert_array_equal(expected[name], array, err_msg=name)


def test_names_change_with_what_decides_over_the_weights(tmp_path, folder):
    def names(run):
        return [stage.path.name for stage in stage_chain(run, tmp_path)]

    first, second = names(run_of(folder))
    assert names(run_of(folder)) == [first, second]
    shared, other = names(run_of(folder, temperature=0.5))
    assert shared == first
    assert other != second
    for changed in (
        run_of(folder, seed=6),
        run_of(folder, dropout=0.1),
        dataclasses.replace(run_of(folder), precision="float32"),
    ):
        assert not {first, second} & set(names(changed))
    run = run_of(folder)
    swapped = dataclasses.replace(run, stages=dict(reversed(run.stages.items())))
    assert not {first, second} & set(names(swapped))
    # The content of the data, wherever it lies under the same name.
    corpus = folder / "data" / "corpus.jsonl"
    content = corpus.read_text()
    corpus.write_text(content + json.dumps({"_id": "new", "title": "", "text": "red"}) + "\n")
    assert not {first, second} & set(names(run_of(folder)))
    corpus.write_text(content)
    vocabulary = folder / "vocab.txt"
    content = vocabulary.read_text()
    vocabulary.write_text(content + "purple\n")
    assert not {first, second} & set(names(run_of(folder)))
    vocabulary.write_text(content)
    assert names(run_of(folder)) == [first, second]


def test_names_change_with_the_checkpoint_that_a_run_starts_from(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    for name in ("one", "two"):
        tiny.dual_encoder().save_to_preset(tmp_path / name)

    def names(backbone):
        run = dataclasses.replace(run_of(folder), model=ModelConfig(backbone))
        return [stage.path.name for stage in stage_chain(run, tmp_path / "trained")]

    one, pair = names("${CHECKPOINTS}/one"), names("${CHECKPOINTS}/one, ${CHECKPOINTS}/two")
    # What tells of a model, such as when it was saved, does not decide over what it becomes.
    for name in ("README.md", "metadata.json"):
        written = tmp_path / "one" / name
        written.write_text(written.read_text().replace("20", "19"))
    assert names("${CHECKPOINTS}/one") == one
    weights = tmp_path / "two" / "model.weights.h5"
    weights.write_bytes(weights.read_bytes() + b"trained on")
    assert names("${CHECKPOINTS}/one") == one
    assert not set(names("${CHECKPOINTS}/one, ${CHECKPOINTS}/two")) & set(pair)
    assert names("t5_1.1_small") == names("t5_1.1_small")  # a hub's


def test_a_file_that_two_stages_read_is_read_once(tmp_path, folder):
    read = []

    @functools.cache
    def remembered(path):
        read.append(path)
        return checksum(path)

    run = run_of(folder)
    assert stage_chain(run, tmp_path, checksum_of=remembered) == stage_chain(run, tmp_path)
    assert read == [folder / "data", folder / "vocab.txt"]


def test_bm25_over_more_candidates(tmp_path, folder):
    pages = tmp_path / "pages.jsonl"
    # A query is the second and first word of its document; this sentence has both, and is shorter.
    sections = (Section("", ("Nothing here. Green red.", "Stone tree house.")),)
    write_pages(pages, [Page("p", "colours", sections), Page("q", "", sections)])
    dataset = DatasetDirectory(folder / "data")
    plain = EvaluationConfig(str(folder / "data"), "dev", ("R@1", "R@10"), max_queries=4)
    found = measure(None, plain)
    assert found["queries"] == 4
    assert found["documents"] == 60
    # The two words stand in two documents at most beside others of more frequent words.
    assert found["measures"]["R@10"] == 1.0
    more = dataclasses.replace(plain, max_queries=None, more_candidates=str(pages))
    found = measure(None, more)
    assert (found["queries"], found["documents"]) == (len(dataset.qrels("dev")), 60 + 6)


def test_what_validation_keeps_is_measured(tmp_path, folder):
    data = str(folder / "data")
    checked = ValidationConfig(data, split="dev", every_steps=2, measures=("RR",))
    chain = stage_chain(run_of(folder, validation=checked), tmp_path / "trained")
    record = do_cell(chain, EvaluationConfig(data, split="dev", measures=("RR",)))
    assert record["model"].endswith("/best_model")
    history = (chain[-1].path / "history.jsonl").read_text().splitlines()
    found = [line["RR"] for line in map(json.loads, history) if "RR" in line]
    assert len(found) > 1
    assert record["measures"]["RR"] == pytest.approx(max(found), abs=1e-6)


@pytest.mark.parametrize("field", ["start_shares", "measure_start", "guards"])
def test_a_later_stage_has_no_start_to_be_compared_with(folder, field):
    data = str(folder / "data")
    known = {"measure_start": True} if field == "measure_start" else {}
    if field == "guards":
        known = {"guards": {"away": GuardConfig(data, split="dev")}}
    checked = ValidationConfig(data, split="dev", every_steps=2, measures=("RR",), **known)
    shares = {"start_shares": (0.5,)} if field == "start_shares" else {}
    run = run_of(folder, validation=checked, **shares)
    evaluation = EvaluationConfig(data, split="dev", measures=("RR",))
    cells = [Cell({"axis": "value"}, 0, run, evaluation)]
    with pytest.raises(ConfigError, match=rf"stages.second\..*{field}` must be left out after the"):
        check_cells(cells, SimpleNamespace(vocabulary=None))
