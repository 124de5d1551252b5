"""mine-negatives and cluster-queries as commands, into training by a recipe."""

import dataclasses
import json

import pytest
import tiny

from tfde.cli.main import main
from tfde.config.backbones import BertConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.data.pairs.query_clusters import read_clusters
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.training.early_checks import check_run
from tfde.training.run import train
from tfde.training.stage_data import StageData


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    tiny.write_dataset(directory / "data")
    tiny.dual_encoder().save_to_preset(directory / "model")
    return directory


def tfde(capsys, *args):
    code = main([str(arg) for arg in args])
    out, error = capsys.readouterr()
    return code, out, error


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_source(work, capsys):
    data, model = work / "data", work / "model"
    common = ["mine-negatives", "--dataset", data, "--count", 2, "--max_rank", 10]
    code, out, error = tfde(
        capsys, *common, "--from", "bm25", "--relative_margin", 0.02, "--output", work / "b.jsonl"
    )
    assert (code, error) == (0, "")
    assert "b.jsonl: 160 pairs, " in out
    assert "known positives: 1" in out  # 160 at most, 100 at least
    assert "score too near the positive's: " in out
    assert all("scores" in line for line in lines(work / "b.jsonl"))

    code, out, error = tfde(
        capsys, *common, "--model", model, "--choice", "sampled", "--temperature", 0.1,
        "--output", work / "m.jsonl",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "160 pairs, 320 negatives, 0 pairs with fewer than 2 (0 with none)" in out

    queries = data / "queries.jsonl"
    for command in (
        ["encode", "--model", model, "--dataset", data, "--output", work / "e"],
        ["build-index", "--embeddings", work / "e", "--output", work / "i"],
        ["retrieve", "--model", model, "--index", work / "i", "--queries", queries,
         "--output", work / "run.trec", "-k", 10],
        [*common, "--model", model, "--index", work / "i", "--output", work / "mi.jsonl"],
        [*common, "--run_file", work / "run.trec", "--output", work / "r.jsonl"],
        [*common, "--from", "random", "--documents", "texts", "--output", work / "x.jsonl"],
    ):  # fmt: skip
        code, _, error = tfde(capsys, *command)
        assert (code, error) == (0, "")
    by_index, by_run = lines(work / "mi.jsonl"), lines(work / "r.jsonl")
    same = [a["negatives"] == b["negatives"] for a, b in zip(by_index, by_run, strict=True)]
    assert sum(same) > 150
    assert len(read_pairs(work / "x.jsonl")) == 160
    assert "scores" not in lines(work / "x.jsonl")[0]


def test_a_real_cross_encoder(work, capsys):
    sizes = BertConfig(
        vocabulary_size=120, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12,
        max_sequence_length=32, dropout=0.0,
    )  # fmt: skip
    model = CrossEncoder.from_backbone(sizes, tokenizer=tiny.tokenizer(), seed=1)
    model.save_to_preset(work / "cross")
    code, out, error = tfde(
        capsys, "mine-negatives", "--dataset", work / "data", "--from", "bm25", "--count", 2,
        "--cross_encoder", work / "cross", "--cross_margin", 0, "--output", work / "c.jsonl",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "relevant to the cross-encoder: " in out
    texts = {d["_id"]: d["text"] for d in lines(work / "data" / "corpus.jsonl")}
    for line in lines(work / "c.jsonl")[::40]:
        ids = [line["positive"], *line["negatives"]]
        scores = model.score([(line["query"], texts[i]) for i in ids])
        given = [line["cross_scores"]["positive"], *line["cross_scores"]["negatives"]]
        assert abs(scores - given).max() < 1e-4
        assert all(score <= given[0] for score in given[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "candidates come from one of `from`, `model` and `run_file`; give one"),
        (["--from", "bm25", "--run_file", "r"], "give one"),
        (["--from", "bm25", "--index", "i"], "`index` goes with `model`"),
        (["--from", "bm25", "--min_rank", "200"], "`max_rank` must be at least `min_rank`, 200"),
        (["--from", "bm25", "--split", "test"], "`split` must be one of its splits: train, dev"),
        (["--from", "bm25", "--cross_margin", "1"], "give both or neither"),
    ],
)
def test_impossible_commands(work, capsys, options, message):
    code, _, error = tfde(
        capsys, "mine-negatives", "--dataset", work / "data", "--output", work / "no", *options
    )
    assert code == 1
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_run_of_another_split_is_refused(work, capsys):
    """It would give a pair file without a negative."""
    (work / "other.trec").write_text("nobody Q0 d1 1 2.0 x\n")
    code, _, error = tfde(
        capsys, "mine-negatives", "--dataset", work / "data", "--run_file", work / "other.trec",
        "--output", work / "none.jsonl",
    )  # fmt: skip
    assert code == 1
    assert "other.trec: has no query of" in error
    assert "split train; a run of another split goes with `--split`." in error
    assert not (work / "none.jsonl").exists()


def test_clusters_that_cannot_be_written_are_refused_before_the_encoding(work, capsys):
    code, _, error = tfde(
        capsys, "cluster-queries", "--model", work / "none", "--data", work / "data",
        "--clusters", 8, "--output", work,
    )  # fmt: skip
    assert code == 1
    assert error.endswith(f"{work}: the output must be a file, but a directory stands there.\n")


def test_topics_and_mined_pairs_in_a_recipe(work, capsys):
    code, out, error = tfde(
        capsys, "cluster-queries", "--model", work / "model", "--data", work / "data",
        "--clusters", 8, "--min_size", 12, "--output", work / "clusters.jsonl",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "160 queries in " in out
    clusters = read_clusters(work / "clusters.jsonl")
    assert set(clusters) == {f"q{i}" for i in range(200) if i % 5}
    sizes = [list(clusters.values()).count(c) for c in set(clusters.values())]
    assert min(sizes) >= 12
    assert len(sizes) > 1

    code, _, _ = tfde(
        capsys, "mine-negatives", "--dataset", work / "data", "--from", "bm25", "--count", 2,
        "--output", work / "hard.jsonl",
    )  # fmt: skip
    assert code == 0
    stage = StageConfig(
        str(work / "hard.jsonl"), dataset=str(work / "data"), steps=5, batch_size=12,
        negatives_per_query=2, topic_clusters=str(work / "clusters.jsonl"),
        optimizer=OptimizerConfig("adamw", learning_rate=1e-3),
    )  # fmt: skip
    batches = StageData(seed=0, stores=work / "stores").batches(stage)
    for step in range(5):
        ids = [batches.table[int(row)].query.query_id for row in batches.rows(step)]
        assert len({clusters[query_id] for query_id in ids}) == 1
    run = TrainRun(ModelConfig(str(work / "model")), {"hard": stage})
    train(run, work / "trained", verbose=0)
    record = json.loads((work / "trained" / "run.json").read_text())
    assert str(work / "clusters.jsonl") in record["data"]
    odd = dataclasses.replace(stage, topic_clusters=str(work / "nowhere.jsonl"))
    with pytest.raises(ConfigError, match=r"stages\.hard\.topic_clusters: .* does not exist"):
        check_run(dataclasses.replace(run, stages={"hard": odd}))
