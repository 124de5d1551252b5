"""Recipes with a guide and with first numbers: both learn, together, and say what they trained."""

import dataclasses
import json

import numpy as np
import pytest
import tiny

from tfde.config.losses import GuideConfig, MatryoshkaConfig
from tfde.config.model import TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.errors import ConfigError
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.early_checks import check_run
from tfde.training.run import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("losses")
    tiny.write_dataset(folder / "data", documents=200)
    model = tiny.dual_encoder(text=TextConfig(8, 16), embedding_dim=16)
    model.save_to_preset(folder / "start")
    return folder


def run_of(folder, *, steps=60, **options):
    stage = StageConfig(
        str(folder / "data"), steps=steps, batch_size=32, log_every_steps=steps,
        optimizer=OptimizerConfig("adamw", 0.03, schedule="constant"), **options,
    )  # fmt: skip
    return TrainRun(ModelConfig(str(folder / "start")), {"only": stage}, seed=2)


def found_first(model, dim):
    """The share of queries whose document is the best of 200, by the first numbers alone."""
    texts = tiny.document_texts()[:200]
    queries = [" ".join(text.split()[1::-1]) for text in texts]
    sides = []
    for rows in (model.encode_queries(queries), model.encode_documents(texts)):
        cut = rows[:, :dim]
        sides.append(cut / np.linalg.norm(cut, axis=1, keepdims=True))
    return float(np.mean(np.argmax(sides[0] @ sides[1].T, axis=1) == np.arange(len(texts))))


def test_both_learn_and_the_model_says_what_it_was_trained_for(folder, tmp_path):
    plain = train(run_of(folder), tmp_path / "plain", verbose=0)
    run = run_of(
        folder,
        guide=GuideConfig(score_margin=0.02),
        matryoshka=MatryoshkaConfig((3, 16), (1.0, 1.0)),
    )
    check_run(run)
    model = train(run, tmp_path / "out", verbose=0)
    before = DualEncoder.from_preset(folder / "start")
    for dim in (3, 16):
        assert found_first(model, dim) > 2 * found_first(before, dim), dim
    # Three numbers of sixteen are better trained than they come.
    assert found_first(model, 3) > found_first(plain, 3)
    # The guide is the start: what decides over it stands in the record, as the start does.
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["run"]["stages"]["only"]["guide"]["model"] is None
    loaded = DualEncoder.from_preset(tmp_path / "out" / "model")
    assert loaded.config.trained_dims == (3, 16)
    assert "trained_dims | 3, 16 |" in (tmp_path / "out" / "model" / "README.md").read_text()
    # Started again, a run that is finished writes the same model.
    assert train(run, tmp_path / "out", verbose=0).config.trained_dims == (3, 16)
    # They decide over no embedding of the whole: an index of the same weights stays.
    other = dataclasses.replace(loaded.config, trained_dims=())
    fingerprint, loaded.config = loaded.fingerprint(), other
    assert loaded.fingerprint() == fingerprint
    # Trained on without them, the first numbers serve alone no longer.
    again = dataclasses.replace(
        run_of(folder, steps=1), model=ModelConfig(str(tmp_path / "out/model"))
    )
    assert train(again, tmp_path / "again", verbose=0).config.trained_dims == ()
    model.note_task(RetrievalTask())
    assert model.config.trained_dims == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"guide": GuideConfig(score_margin=-1)},
            r"`stages\.only\.guide\.score_margin` must be",
        ),
        ({"matryoshka": MatryoshkaConfig(())}, r"`stages\.only\.matryoshka`: `dims` must be asc"),
        (
            {"matryoshka": MatryoshkaConfig((4, 16), (1.0,))},
            r"`stages\.only\.matryoshka`: `weights` must be 2 numbers from 0",
        ),
        (
            {"guide": GuideConfig(), "objective": "masked_lm"},
            r"`stages\.only\.guide` must be None with objective masked_lm",
        ),
    ],
)
def test_impossible_stages(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        run_of(folder, **options)


def test_what_is_found_before_any_work(folder, tmp_path):
    missing = run_of(folder, guide=GuideConfig(str(folder / "nothing")))
    with pytest.raises(ConfigError, match=r"`stages\.only\.guide\.model`: .*nothing"):
        check_run(missing)
    random = dataclasses.replace(
        run_of(folder, guide=GuideConfig()), model=ModelConfig({"kind": "bag_of_words"})
    )
    with pytest.raises(ConfigError, match=r"`stages\.only\.guide\.model` must be a model dir"):
        check_run(random)
    short = run_of(folder, matryoshka=MatryoshkaConfig((4, 8)))
    message = r"stages\.only: `matryoshka\.dims` must be 16, the length of an embedding, at the end"
    with pytest.raises(ConfigError, match=message):
        train(short, tmp_path / "out", verbose=0)
