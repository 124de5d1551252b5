"""Negatives that a stage mines anew: which model mines, what stays as it was, what is refused."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import tiny

from tfde.config.model import TextConfig
from tfde.config.negatives import MiningRules, RefreshConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError, CorruptError
from tfde.negatives.candidate_sources import ModelCandidates
from tfde.negatives.mine import mine_negatives
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.negative_refresh import NegativeRefresh, check_refresh
from tfde.training.run import train
from tfde.training.stage_data import StageData

BOW = {"kind": "bag_of_words", "embedding_dim": 4, "hidden_dim": 4, "dropout": 0.1}
REFRESH = RefreshConfig(every_steps=3, count=3, max_rank=20, choice="random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("refresh")
    tiny.write_dataset(directory / "data", documents=60)
    (directory / "vocab.txt").write_text("\n".join(tiny.VOCABULARY) + "\n")
    return directory


def run_of(folder, **options):
    options = {
        "data": str(folder / "data"),
        "steps": 7,
        "batch_size": 8,
        "optimizer": OptimizerConfig("adamw", 0.02, "constant"),
        "log_every_steps": 1,
        **options,
    }
    model = ModelConfig(BOW, str(folder / "vocab.txt"), embedding_dim=3, text=TextConfig(8, 16))
    return TrainRun(model, {"only": StageConfig(**options)}, seed=5)


@pytest.fixture(scope="module")
def refreshed(folder):
    """A run that mines after 3 and 6 of 7 steps."""
    run = run_of(folder, negatives_per_query=2, refresh=REFRESH)
    train(run, folder / "refreshed", verbose=0)
    return folder / "refreshed"


def lines(path):
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def history(output):
    return [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]


def mined_by(model, folder, output, step):
    rules = MiningRules(count=3, max_rank=20, choice="random", seed=5 + step)
    dataset = DatasetDirectory(folder / "data")
    mine_negatives(dataset, ModelCandidates(model), output, rules)
    return lines(output)


def test_the_model_of_that_step_mines(folder, refreshed, tmp_path):
    """Up to the first refresh the stage is one without; so its model can be trained apart."""
    stop_before_second = run_of(folder, steps=6, negatives_per_query=2, refresh=REFRESH)
    train(stop_before_second, tmp_path / "run" / "six", verbose=0)
    assert [file.name for file in sorted((refreshed / "negatives" / "only").iterdir())] == [
        "step-6.jsonl.gz",
        "step-6.jsonl.gz.json",
    ]
    first = lines(tmp_path / "run" / "six" / "negatives" / "only" / "step-3.jsonl.gz")
    plain = train(run_of(folder, steps=3), tmp_path / "run" / "three", verbose=0)
    assert first == mined_by(plain, folder, tmp_path / "a.jsonl.gz", 3)
    assert len(first) == 48
    second = lines(refreshed / "negatives" / "only" / "step-6.jsonl.gz")
    model = DualEncoder.from_preset(tmp_path / "run" / "six" / "model")
    assert second == mined_by(model, folder, tmp_path / "b.jsonl.gz", 6)
    assert [line["negatives"] for line in first] != [line["negatives"] for line in second]


def test_at_start_the_model_of_the_start_mines(folder, tmp_path):
    refresh = dataclasses.replace(REFRESH, at_start=True)
    model = tiny.dual_encoder()
    model.save_to_preset(tmp_path / "model")
    run = run_of(folder, steps=2, negatives_per_query=2, refresh=refresh)
    run = dataclasses.replace(run, model=ModelConfig(str(tmp_path / "model")))
    train(run, tmp_path / "run", verbose=0)
    found = lines(tmp_path / "run" / "negatives" / "only" / "step-0.jsonl.gz")
    assert found == mined_by(model, folder, tmp_path / "a.jsonl.gz", 0)
    assert history(tmp_path / "run")[0]["step"] == 0


def test_the_history_tells_of_each_refresh(folder, refreshed):
    told = [line for line in history(refreshed) if "refresh_seconds" in line]
    assert [(line["stage"], line["step"]) for line in told] == [("only", 3), ("only", 6)]
    assert told[0]["changed_negatives"] == 1.0  # the stage had none of its own
    assert 0 < told[1]["changed_negatives"] < 1
    found = lines(refreshed / "negatives" / "only" / "step-6.jsonl.gz")
    gaps = [
        line["scores"]["positive"] - score
        for line in found
        for score in line["scores"]["negatives"]
    ]
    assert told[1]["score_gap"] == pytest.approx(np.mean(gaps))
    assert told[1]["negatives_per_pair"] == pytest.approx(len(gaps) / len(found))
    assert all(line["refresh_seconds"] > 0 for line in told)
    steps = [line["step"] for line in history(refreshed) if "loss" in line]
    assert steps == list(range(1, 8))


def refresh_of(run, folder):
    stage = run.stages["only"]
    return NegativeRefresh(stage, REFRESH, folder, data=StageData(seed=5, stores=folder))


def test_pairs_keep_their_order(folder, refreshed):
    run = run_of(folder, negatives_per_query=2, refresh=REFRESH)
    refresh = refresh_of(run, refreshed / "negatives" / "only")
    plain = StageData(seed=5, stores=folder).batches(run_of(folder).stages["only"])
    before, after = refresh.batches(2), refresh.batches(6)
    assert (before.negatives_per_query, after.negatives_per_query) == (0, 2)
    found = {
        (line["query_id"], line["positive"]): set(line["negatives"])
        for line in lines(refreshed / "negatives" / "only" / "step-6.jsonl.gz")
    }
    texts = {d.doc_id: d.text for d in DatasetDirectory(folder / "data").documents()}
    queries = {q.text: q.query_id for q in DatasetDirectory(folder / "data").queries()}
    for step in (0, 6, 13):
        expected = plain.batch(step)
        for batches in (before, after):
            actual = batches.batch(step)
            for name in ("query", "document_text", "document_key", "positive_keys"):
                np.testing.assert_array_equal(actual[name], expected[name])
        for row, query in enumerate(expected["query"]):
            query_id = queries[query.decode()]
            given = found[query_id, f"d{query_id[1:]}"]
            batch = after.batch(step)["negative_text"][row]
            assert {text.decode() for text in batch} <= {texts[doc_id] for doc_id in given}


def test_own_negatives_serve_until_the_first_refresh(folder, tmp_path):
    """Pairs of a file, one of them twice and one beyond the limit, whose negatives are given."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        {"query": f"red {i}", "query_id": f"x{i}", "positive": f"d{i}", "negatives": ["d50"]}
        for i in (*range(10), 3, 40)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data": str(pairs), "dataset": str(folder / "data"), "limit": 11, "batch_size": 4}
    run = run_of(folder, **options, steps=4, negatives_per_query=1, refresh=REFRESH)
    check_refresh(run.stages["only"], StageData(seed=5, stores=folder))
    train(run, tmp_path / "run", verbose=0)
    mined = lines(tmp_path / "run" / "negatives" / "only" / "step-3.jsonl.gz")
    assert [line["query_id"] for line in mined] == [f"x{i}" for i in range(10)]
    refresh = refresh_of(run, tmp_path / "run" / "negatives" / "only")
    own, new = refresh.batches(0).table, refresh.batches(3).table
    assert {d.doc_id for pair in own for d in pair.negatives} == {"d50"}
    assert [pair.positive for pair in new] == [pair.positive for pair in own]
    assert [[d.doc_id for d in pair.negatives] for pair in new] == [
        mined[int(pair.query.query_id[1:])]["negatives"] for pair in new
    ]
    (line,) = (line for line in history(tmp_path / "run") if "changed_negatives" in line)
    kept = sum("d50" in row["negatives"] for row in mined)
    total = sum(len(row["negatives"]) for row in mined)
    assert line["changed_negatives"] == pytest.approx(1 - kept / total)


def test_a_positive_beyond_the_limit_makes_no_pair_and_is_no_negative(folder, tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=60)
    with (data / "qrels" / "train.tsv").open("a") as file:
        file.write("q59\td3\t1\n")  # the 49th pair
    refresh = dataclasses.replace(REFRESH, count=60, max_rank=60)
    run = run_of(folder, data=str(data), limit=48, steps=4, negatives_per_query=2, refresh=refresh)
    train(run, tmp_path / "run", verbose=0)
    mined = lines(tmp_path / "run" / "negatives" / "only" / "step-3.jsonl.gz")
    found = {(line["query_id"], line["positive"]): line["negatives"] for line in mined}
    assert sorted(found) == sorted((f"q{i}", f"d{i}") for i in range(60) if i % 5)
    assert "d3" not in found["q59", "d59"]
    assert "d3" in found["q58", "d58"]


def test_a_lost_file_is_named(folder, tmp_path):
    run = run_of(folder, negatives_per_query=2, refresh=REFRESH)
    refresh = refresh_of(run, tmp_path)
    with pytest.raises(CorruptError, match=r"step-3\.jsonl\.gz\.json: is missing"):
        refresh.batches(4)
    (tmp_path / "step-3.jsonl.gz").write_bytes(b"other")
    (tmp_path / "step-3.jsonl.gz.json").write_text('{"sha256": "0"}')
    with pytest.raises(CorruptError, match=r"step-3\.jsonl\.gz: differs from what was written"):
        refresh.batches(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"refresh": REFRESH},
            r"`stages\.only\.negatives_per_query` must be at least 1 with `refresh`",
        ),
        (
            {"refresh": REFRESH, "negatives_per_query": 4},
            r"only\.refresh\.count` must be at least `negatives_per_query`, 4\. Received: 3",
        ),
        (
            {"refresh": REFRESH, "negatives_per_query": 1, "steps": 3},
            r"only\.refresh\.every_steps` must be below `steps`, 3, or there is no.*Received: 3",
        ),
        (
            {"refresh": REFRESH, "negatives_per_query": 1, "objective": "masked_lm"},
            r"`stages\.only\.refresh` must be None with objective masked_lm",
        ),
        (
            {
                "refresh": REFRESH,
                "negatives_per_query": 1,
                "data": None,
                "mixture": (SourceConfig("y"),),
            },
            r"`stages\.only\.refresh` must be null with `mixture`",
        ),
    ],
)
def test_impossible_stages(options, message):
    with pytest.raises(ConfigError, match=message):
        run_of(Path("x"), **options)


@pytest.mark.parametrize("name", ["every_steps", "batch_size"])
def test_impossible_refreshes(name):
    refresh = RefreshConfig(**{"every_steps": 1, name: 0})
    message = rf"`stages\.only\.refresh\.{name}` must be at least 1\. Received: 0"
    with pytest.raises(ConfigError, match=message):
        run_of(Path("x"), negatives_per_query=1, refresh=refresh)


def test_what_fails_later_is_said_before(folder, tmp_path):
    wrong = dataclasses.replace(REFRESH, max_rank=0)
    with pytest.raises(ConfigError, match=r"`stages\.only\.refresh`: `max_rank` must be at least"):
        run_of(folder, negatives_per_query=1, refresh=wrong)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"query": "red", "positive": {"title": "", "text": "green"}}))
    alone = {"data": str(pairs), "negatives_per_query": 1, "refresh": REFRESH}
    message = r"stages\.only: `refresh` searches a corpus: `data` must be a dataset directory, or"
    with pytest.raises(ConfigError, match=message):
        train(run_of(folder, **alone), tmp_path / "out", verbose=0)
    message = (
        r"stages\.only: `refresh` needs positives that are documents of .*data, named by their ids"
    )
    with pytest.raises(ConfigError, match=message):
        train(run_of(folder, **alone, dataset=str(folder / "data")), tmp_path / "out", verbose=0)
    assert not (tmp_path / "out").exists()
