"""What a stage says about the parts it trains and the lengths of its texts."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny

from tfde.config.losses import AnchorConfig
from tfde.config.model import Sharing, TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.pages import Page, Section, write_pages
from tfde.errors import ConfigError
from tfde.towers.average import average_models
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.sharing import check_freeze, frozen_parts
from tfde.training.checkpoint import read_progress
from tfde.training.retrieval_validation import RetrievalValidation
from tfde.training.run import train
from tfde.training.training_card import format_gains

BOW = {"kind": "bag_of_words", "embedding_dim": 4, "hidden_dim": 4}


@pytest.fixture
def run(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data", documents=60))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    rate = OptimizerConfig("adamw", 0.01, "constant")
    first = StageConfig(data, steps=2, batch_size=8, optimizer=rate)
    model = ModelConfig(BOW, str(vocabulary), embedding_dim=3, text=TextConfig(8, 16))
    return TrainRun(model, {"first": first})


def with_second(run, **options):
    second = dataclasses.replace(run.stages["first"], **options)
    return dataclasses.replace(run, stages={**run.stages, "second": second})


def test_frozen_parts_stay_as_the_stage_before_left_them(tmp_path, run):
    before = train(run, tmp_path / "one", verbose=0).towers.named_weights()
    frozen = with_second(run, freeze=("token_embedder", "encoder"))
    model = train(frozen, tmp_path / "two", verbose=0)
    for name, weight in model.towers.named_weights().items():
        same = np.array_equal(weight.numpy(), before[name].numpy())
        assert same is (not name.startswith("projection")), name
        assert weight.trainable


def test_towers_part_in_a_later_stage(tmp_path, run):
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, sharing="sde"))
    parted = with_second(run, sharing="ade_spl")
    model = train(parted, tmp_path / "two", verbose=0)
    assert model.config.sharing == Sharing.of("ade_spl")
    names = set(model.towers.named_weights())
    assert {name.split("/")[1] for name in names if name.startswith("encoder")} == {
        "query",
        "document",
    }
    before = train(run, tmp_path / "one", verbose=0)
    # As if that model had been parted and trained by itself.
    alone = ModelConfig(str(tmp_path / "one" / "model"))
    second = {"second": parted.stages["second"]}
    again = train(dataclasses.replace(run, model=alone, stages=second), tmp_path / "n", verbose=0)
    assert before.config.sharing == Sharing.of("sde")
    for name, weight in model.towers.named_weights().items():
        np.testing.assert_array_equal(weight, again.towers.named_weights()[name])


def test_a_later_stage_has_a_projection_of_its_own(tmp_path, run):
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, sharing="sde"))
    model = train(with_second(run, sharing="ade", embedding_dim=5), tmp_path / "run", verbose=0)
    assert model.embedding_dim == 5
    assert DualEncoder.load(tmp_path / "run" / "model").embedding_dim == 5
    message = r"`stages\.second\.embedding_dim` must be at least 1\. Received: 0"
    with pytest.raises(ConfigError, match=message):
        train(with_second(run, embedding_dim=0), tmp_path / "none", verbose=0)


def test_separate_towers_do_not_become_one(tmp_path, run):
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, sharing="ade"))
    message = r"stages\.second: `sharing\.token_embedder` must stay separate.* Received: 'shared'"
    with pytest.raises(ConfigError, match=message):
        train(with_second(run, sharing="sde"), tmp_path / "run", verbose=0)


@pytest.mark.parametrize("alike", [True, False])
def test_the_best_model_is_the_best_of_stages_measured_alike(tmp_path, run, alike):
    """A second stage that ruins the model leaves the first one's in `best_model`."""
    data = run.stages["first"].data
    validation = ValidationConfig(data, every_steps=2, measures=("RR",))
    first = dataclasses.replace(run.stages["first"], steps=8, validation=validation)
    run = dataclasses.replace(run, stages={"first": first})
    other = dataclasses.replace(validation, every_steps=8, max_queries=1000 if alike else 11)
    ruin = OptimizerConfig("adamw", 50.0, "constant")
    both = with_second(run, validation=other, optimizer=ruin)
    assert both.competing_stages("second") == (["first", "second"] if alike else ["second"])
    train(both, tmp_path / "run", verbose=0)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    found = [line for line in map(json.loads, lines) if "RR" in line]
    values = [line["RR"] for line in found if line["stage"] == "first"]
    assert max(values) > found[-1]["RR"]
    kept = DualEncoder.load(tmp_path / "run" / "best_model")
    kept_value = RetrievalValidation(other, seed=run.seed)(kept)["RR"]
    card = (tmp_path / "run" / "best_model" / "README.md").read_text()
    assert kept_value == pytest.approx(max(values) if alike else found[-1]["RR"])
    assert f"of stage {'first' if alike else 'second'}: RR {kept_value:.4f}" in card


@pytest.mark.parametrize("max_loss", [0.0, 1.0])
def test_a_model_that_harms_a_guard_is_not_the_best(tmp_path, run, max_loss, caplog):
    """What is learned away is wrong at home, where each query's document is another one's."""
    caplog.set_level("INFO", "tfde")
    away = tiny.write_dataset(tmp_path / "away", documents=60)
    stage = dataclasses.replace(run.stages["first"], data=str(away), steps=40)
    run = dataclasses.replace(run, stages={"first": stage})
    train(run, tmp_path / "start", verbose=0)
    home = tmp_path / "data"
    for qrels in (home / "qrels").iterdir():
        header, *rows = qrels.read_text().splitlines()
        queries, doc_ids, scores = zip(*(row.split("\t") for row in rows), strict=True)
        turned = zip(queries, (*doc_ids[1:], doc_ids[0]), scores, strict=True)
        qrels.write_text("\n".join([header, *map("\t".join, turned)]) + "\n")
    guard = GuardConfig(str(away), "dev", "RR", max_loss)
    validation = ValidationConfig(
        str(home), every_steps=20, measures=("RR",), guards={"away": guard}
    )
    stage = dataclasses.replace(stage, data=str(home), validation=validation)
    model = ModelConfig(str(tmp_path / "start" / "model"))
    run = dataclasses.replace(run, model=model, stages={"first": stage})
    train(run, tmp_path / "run", verbose=0)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    found = [line for line in map(json.loads, lines) if "RR" in line]
    assert [line["step"] for line in found] == [0, 20, 40]
    start = found[0]
    assert start["away RR"] == start["guards' mean"]
    allowed = [line for line in found if start["away RR"] - line["away RR"] <= max_loss]
    assert ["harm" in line for line in found] == [line not in allowed for line in found]
    best = max(allowed, key=lambda line: line["RR"])
    # Otherwise this test says nothing.
    assert (len(allowed) < 3) is (max_loss == 0.0)
    kept = DualEncoder.load(tmp_path / "run" / "best_model")
    measured = RetrievalValidation(validation, seed=run.seed)(kept)
    assert measured["RR"] == pytest.approx(best["RR"])
    assert measured["away RR"] == pytest.approx(best["away RR"])
    card = (tmp_path / "run" / "best_model" / "README.md").read_text()
    assert f"at step {best['step']} of stage first: RR {best['RR']:.4f}" in card
    assert ("away from home: away RR -0." in caplog.text) is (max_loss == 0.0)
    progress = read_progress(tmp_path / "run" / "checkpoint.safetensors")
    assert progress.start == {name: start[name] for name in ("RR", "away RR", "guards' mean")}


@pytest.mark.parametrize("adapted", [False, True])
def test_means_with_the_start_are_measured_and_the_best_is_kept(tmp_path, run, adapted, caplog):
    """As `tfde average` makes them; taken up after its last step a run measures them anew."""
    first = tiny.dual_encoder(tiny.BERT if adapted else tiny.BAG_OF_WORDS)
    if adapted:  # they are folded in, for the stage has none
        first.enable_lora(2)
    first.save_to_preset(tmp_path / "start")
    start, folder = str(tmp_path / "start"), tmp_path / "run"
    data = run.stages["first"].data
    validation = ValidationConfig(data, every_steps=3, measures=("RR",), measure_start=True)
    stage = dataclasses.replace(
        run.stages["first"],
        steps=3,
        validation=validation,
        start_shares=(0.75, 0.25),
        optimizer=OptimizerConfig("adamw", 0.05, "constant"),
    )
    run = dataclasses.replace(run, model=ModelConfig(start), stages={"only": stage})
    with caplog.at_level("INFO", "tfde"):
        model = train(run, folder, verbose=0)
    assert "as long as this takes each of 3 validations to come" in caplog.text
    measure = RetrievalValidation(validation, seed=run.seed)
    expected = {None: measure(model)["RR"]}
    at_start = measure(DualEncoder.load(start))["RR"]
    for share in stage.start_shares:
        mean = average_models([folder / "model", start], [1 - share, share])
        expected[f"with {share} of the start"] = measure(mean)["RR"]
    for _ in range(2):
        lines = list(map(json.loads, (folder / "history.jsonl").read_text().splitlines()))
        found = {x.get("averaged"): x["RR"] for x in lines if "RR" in x and x["step"]}
        assert found == pytest.approx(expected, abs=1e-6)
        best = measure(DualEncoder.load(folder / "best_model"))["RR"]
        assert best == pytest.approx(max(at_start, *expected.values()), abs=1e-6)
        gains = format_gains(folder, leading="RR", stages=["only"])
        assert f"{at_start:.4f}  {best:.4f}" in gains
        shutil.rmtree(folder / "model")
        train(run, folder, verbose=0)


@pytest.mark.parametrize("min_gain_kept", [None, 0.25, 0.0001])
def test_the_mean_nearest_to_the_start_that_keeps_the_gain(tmp_path, run, min_gain_kept):
    """By the values in the history; `None` keeps the highest."""
    tiny.dual_encoder(tiny.BAG_OF_WORDS).save_to_preset(tmp_path / "start")
    folder, shares = tmp_path / "run", (0.99, 0.3, 0.7)
    stage = run.stages["first"]
    validation = ValidationConfig(stage.data, every_steps=20, measures=("RR",), measure_start=True)
    stage = dataclasses.replace(
        stage,
        steps=40,
        validation=validation,
        start_shares=shares,
        min_gain_kept=min_gain_kept,
        ema_momentum=0.5,
    )
    model = ModelConfig(str(tmp_path / "start"))
    run = dataclasses.replace(run, model=model, stages={"only": stage})
    train(run, folder, verbose=0)
    lines = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    found = {(line["step"], line.get("averaged")): line["RR"] for line in lines if "RR" in line}
    start, best = found[(0, None)], max(found.values())
    means = {share: found[(40, f"with {share:g} of the start")] for share in shares}
    wanted = 1.0 if min_gain_kept is None else min_gain_kept
    good = [share for share, value in means.items() if value - start >= wanted * (best - start)]
    expected = means[max(good)] if good else best
    assert best > start + 0.1
    assert (expected < best) is (min_gain_kept is not None)  # otherwise this test says nothing
    kept = RetrievalValidation(validation, seed=run.seed)(DualEncoder.load(folder / "best_model"))
    assert kept["RR"] == pytest.approx(expected, abs=1e-6)
    assert f"{start:.4f}  {expected:.4f}" in format_gains(folder, leading="RR", stages=["only"])


def test_a_history_of_a_version_that_kept_the_highest(tmp_path, run):
    validation = ValidationConfig(run.stages["first"].data, measures=("RR",), measure_start=True)
    stage = dataclasses.replace(run.stages["first"], steps=2, validation=validation)
    train(dataclasses.replace(run, stages={"first": stage}), tmp_path / "run", verbose=0)
    path = tmp_path / "run" / "history.jsonl"
    gains = format_gains(tmp_path / "run", leading="RR", stages=["first"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("kept", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert format_gains(tmp_path / "run", leading="RR", stages=["first"]) == gains != ""


@pytest.mark.parametrize(("momentum", "steps"), [(1 - 1e-7, 1), (1e-9, 3)])
def test_the_mean_over_steps_is_measured_and_kept_if_it_is_the_best(tmp_path, run, momentum, steps):
    """Nearly all of the first step, or of the last; also where a run is taken up at its end."""
    data, folder = run.stages["first"].data, tmp_path / "run"
    validation = ValidationConfig(data, every_steps=3, measures=("RR",))
    optimizer = OptimizerConfig("adamw", 0.05, "constant")
    stage = dataclasses.replace(run.stages["first"], steps=3, optimizer=optimizer)
    alone = dataclasses.replace(run, stages={"only": dataclasses.replace(stage, steps=steps)})
    measure = RetrievalValidation(validation, seed=run.seed)
    expected = measure(train(alone, tmp_path / "alone", verbose=0))["RR"]
    stage = dataclasses.replace(stage, validation=validation, ema_momentum=momentum)
    run = dataclasses.replace(run, stages={"only": stage})
    last = measure(train(run, folder, verbose=0))["RR"]
    for _ in range(2):
        lines = list(map(json.loads, (folder / "history.jsonl").read_text().splitlines()))
        found = {x.get("averaged"): x["RR"] for x in lines if "RR" in x}
        assert found == pytest.approx({None: last, "over the steps": expected}, abs=1e-6)
        best = measure(DualEncoder.load(folder / "best_model"))["RR"]
        assert best == pytest.approx(max(last, expected), abs=1e-6)
        assert measure(DualEncoder.load(folder / "model"))["RR"] == pytest.approx(last, abs=1e-6)
        shutil.rmtree(folder / "model")
        train(run, folder, verbose=0)


def test_a_finished_run_that_is_given_again_is_left_as_it_is(tmp_path, run, caplog):
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    validation = ValidationConfig(run.stages["first"].data, measures=("RR",), measure_start=True)
    stage = dataclasses.replace(
        run.stages["first"], steps=2, validation=validation, start_shares=(0.5,)
    )
    model = ModelConfig(str(tmp_path / "start"))
    run = dataclasses.replace(run, model=model, stages={"only": stage})
    trained = train(run, tmp_path / "run", verbose=0)
    files = [
        file for file in (tmp_path / "run").rglob("*") if file.name not in (".lock", "README.md")
    ]
    before = {file: file.stat().st_mtime_ns for file in files if file.is_file()}
    history = (tmp_path / "run" / "history.jsonl").read_text()
    with caplog.at_level("INFO", "tfde"):
        again = train(run, tmp_path / "run", verbose=0)
    assert "an earlier run is finished: stage only, step 2" in caplog.messages
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert (tmp_path / "run" / "history.jsonl").read_text() == history
    texts = ["one text", "another"]
    np.testing.assert_array_equal(trained.encode_queries(texts), again.encode_queries(texts))
    assert "RR" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_an_anchor_without_the_embeddings_of_the_model(tmp_path, run):
    """A new projection has nothing to stay near."""
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    stage = dataclasses.replace(run.stages["first"], embedding_dim=5, anchor=AnchorConfig())
    run = TrainRun(ModelConfig(str(tmp_path / "start")), {"only": stage})
    message = "stages.only: `anchor.embedding_weight` must be 0 where `embedding_dim` gives a new"
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path / "run", verbose=0)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"start_shares": (0.5,)}, "empty without `validation`"),
        ({"min_gain_kept": 0.9}, "null without `start_shares`"),
        ({"homogeneous": True}, "False without `mixture`"),
        ({"source_temperature": 2.0}, "None without `mixture`"),
    ],
)
def test_what_needs_something_else(tmp_path, run, changes, rule):
    with pytest.raises(ConfigError, match=f"`stages.second.{next(iter(changes))}` must be {rule}"):
        train(with_second(run, **changes), tmp_path / "run", verbose=0)


def test_the_start_is_measured_again_where_no_checkpoint_has_it(tmp_path, run):
    validation = ValidationConfig(run.stages["first"].data, measures=("RR",), measure_start=True)
    stage = dataclasses.replace(run.stages["first"], steps=2, validation=validation)
    run = dataclasses.replace(run, stages={"first": stage})
    train(run, tmp_path / "run", verbose=0)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()  # killed before the first
    train(run, tmp_path / "run", verbose=0)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "RR" in line] == [0, 2]


def test_validation_is_as_deep_as_its_measures(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=200)
    config = ValidationConfig(str(data), measures=("R@200", "R@5"))
    measured = RetrievalValidation(config, seed=0)(tiny.dual_encoder())
    assert measured["R@200"] == 1.0 > measured["R@5"]


def test_a_model_directory_brings_its_own(tmp_path, run, caplog):
    train(run, tmp_path / "one", verbose=0)
    model = ModelConfig(str(tmp_path / "one" / "model"), num_layers=1, text=TextConfig(8, 8))
    train(dataclasses.replace(run, model=model), tmp_path / "two", verbose=0)
    for name in ("num_layers", "text"):
        assert f"model.{name} is ignored: {tmp_path / 'one' / 'model'} has its own" in caplog.text
    assert "model.sharing" not in caplog.text


def test_pairs_may_name_documents_of_a_corpus_alone(tmp_path, run):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    shutil.copy(tmp_path / "data" / "corpus.jsonl", corpus)
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": f"red {i}", "positive": f"d{i}"} for i in range(16)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = dataclasses.replace(run.stages["first"], data=str(pairs), dataset=str(corpus))
    train(dataclasses.replace(run, stages={"first": first}), tmp_path / "run", verbose=0)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(record["data"][str(corpus)]) == ["corpus.jsonl"]


def test_history_has_the_rate_of_its_step(tmp_path, run):
    rate = OptimizerConfig("adamw", 0.01, warmup_steps=2)
    stage = dataclasses.replace(run.stages["first"], steps=4, log_every_steps=1, optimizer=rate)
    train(dataclasses.replace(run, stages={"only": stage}), tmp_path / "run", verbose=0)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, [0.005, 0.01, 0.01, 0.005], rtol=1e-6)


def test_pages_and_pairs_side_by_side(tmp_path, run):
    """A mixture trains on what its sources hold, and a stage of pages alone goes on by steps."""
    pages = tmp_path / "pages.jsonl"
    passages = ("One red apple. Two green trees. A dog.", "The cow is white. A stone road.")
    write_pages(
        pages,
        [Page(f"p{i}", f"red {i}", (Section("", passages),), (f"p{i ^ 1}",)) for i in range(2)],
    )
    data = run.stages["first"].data
    from_pages = SourceConfig(pages=str(pages), weight=0.5)
    stages = {
        "pretrain": StageConfig(mixture=(from_pages,), steps=3, batch_size=6),
        "both": StageConfig(mixture=(from_pages, SourceConfig(data)), steps=2, batch_size=9),
    }
    model = train(dataclasses.replace(run, stages=stages), tmp_path / "run", verbose=0)
    assert len(list((tmp_path / "run" / "pages").iterdir())) == 1
    again = train(dataclasses.replace(run, stages=stages), tmp_path / "again", verbose=0)
    assert again.fingerprint() == model.fingerprint()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(record["data"]) == {str(pages), data, run.model.tokenizer}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"`stages\.only` needs either `data` or `mixture`, and not both\. Received: data=None",
        ),
        (
            {"data": "x", "mixture": (SourceConfig("y"),)},
            r"`stages\.only` needs either `data` or `mixture`, and not both\. Received: data='x'",
        ),
        (
            {"mixture": (SourceConfig("y"),), "limit": 3},
            r"`stages\.only\.limit` must be that of a source\. Received: 3",
        ),
        (
            {"mixture": (SourceConfig("y"), SourceConfig())},
            r"only\.mixture\[1\]` needs either `data` or `pages`, and not both\. Received: dat",
        ),
        (
            {"mixture": (SourceConfig("x", weight=0),)},
            r"`stages\.only\.mixture\[0\]\.weight` must be above 0\. Received: 0",
        ),
        (
            {"mixture": (SourceConfig(pages="x", limit=3),)},
            r"mixture\[0\]\.limit` must be left out, for it is of `data`\. Received: 3",
        ),
        (
            {"mixture": (SourceConfig("x", titles=()),)},
            r"mixture\[0\]\.titles` must be left out, for it is of `pages`\. Received: \(\)",
        ),
    ],
)
def test_impossible_sources(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainRun(ModelConfig("x"), {"only": StageConfig(steps=1, **options)})


@pytest.mark.parametrize("sharing", ["sde", "ade", "ade_fte"])
def test_freezing_ends(sharing):
    model = tiny.dual_encoder(sharing=sharing, embedding_dim=3)
    names = [weight.path for weight in model.trainable_weights]
    with frozen_parts(model.towers, ("token_embedder",)):
        assert 0 < len(model.trainable_weights) == len(names) - {"sde": 1, "ade": 2}.get(sharing, 0)
    assert [weight.path for weight in model.trainable_weights] == names


@pytest.mark.parametrize("sharing", ["sde", "ade", "ade_fte"])
def test_the_lowest_layers_are_frozen_in_both_towers(sharing):
    model = tiny.dual_encoder(tiny.BERT, sharing=sharing, embedding_dim=3)
    before = {weight.path for weight in model.trainable_weights}
    first = {weight.path for weight in model.weights if "layer_0/" in weight.path}
    with frozen_parts(model.towers, (), layers=1):
        left = {weight.path for weight in model.trainable_weights}
    assert before - left == first
    assert first
    assert any("layer_1/" in path for path in left)
    assert {weight.path for weight in model.trainable_weights} == before


def test_layers_to_freeze_are_those_of_an_encoder_that_has_them():
    parts = tiny.dual_encoder(tiny.BERT, embedding_dim=3).towers.query_parts
    options = {"sharing": Sharing.of("sde"), "parts": (), "projected": True}
    check_freeze(parts.encoder, layers=1, **options)
    message = r"`freeze_layers` must be below the encoder's layers, 2\. Received: 2"
    with pytest.raises(ConfigError, match=message):
        check_freeze(parts.encoder, layers=2, **options)
    message = r"`freeze_layers` must be 0 for an encoder without layers\. Received: 1"
    with pytest.raises(ConfigError, match=message):
        check_freeze(parts.token_embedder, layers=1, **options)


def test_something_must_be_left_to_train(tmp_path, run):
    """Looked at with the projection and the sharing that the stage itself brings."""
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, embedding_dim=None))
    both = ("token_embedder", "encoder")
    model = train(with_second(run, freeze=both, embedding_dim=5), tmp_path / "new", verbose=0)
    assert model.embedding_dim == 5
    for number, options in enumerate(
        (
            {"freeze": both},
            {"freeze": (*both, "projection"), "embedding_dim": 5},
            {"freeze": ("encoder",), "sharing": {"token_embedder": "frozen"}},
        )
    ):
        output = tmp_path / str(number)
        message = r"^stages\.second: `freeze` must leave something to train\. Received: "
        with pytest.raises(ConfigError, match=message):
            train(with_second(run, **options), output, verbose=0)
        assert not (output / "history.jsonl").exists()


def test_lengths_of_a_stage(tmp_path, run):
    """A stage whose texts are cut at three tokens (two of them special) is another training."""
    whole = train(with_second(run), tmp_path / "whole", verbose=0)
    short = train(
        with_second(run, query_max_length_tokens=3, document_max_length_tokens=3),
        tmp_path / "short",
        verbose=0,
    )
    assert short.preprocessor.text_config.query_max_length_tokens == 8
    assert short.fingerprint() != whole.fingerprint()
    unchanged = with_second(run, query_max_length_tokens=8, document_max_length_tokens=16)
    assert train(unchanged, tmp_path / "same", verbose=0).fingerprint() == whole.fingerprint()
    with pytest.raises(
        ConfigError, match=r"`query_max_length_tokens` of a stage must be at most the model's, 8"
    ):
        train(with_second(run, query_max_length_tokens=9), tmp_path / "long", verbose=0)
    assert not (tmp_path / "long" / "history.jsonl").exists()
