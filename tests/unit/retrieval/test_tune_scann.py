"""The fewest leaves and candidates for a recall, against counting by hand."""

import dataclasses

import numpy as np
import pytest

from tfde.cli.main import main
from tfde.errors import ConfigError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.recall import sample_queries
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.retrieval.tune_scann import tune_scann


@pytest.fixture(scope="module")
def index():
    rng = np.random.default_rng(2)
    centers = rng.standard_normal((40, 16))
    vectors = centers[rng.integers(40, size=4000)] + 0.4 * rng.standard_normal((4000, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    parameters = ScannParameters(kind="tree", num_leaves=50, reorder=30)
    return ScannIndex.build(vectors, [f"d{i}" for i in range(4000)], parameters=parameters)


@pytest.fixture(scope="module")
def queries(index):
    return sample_queries(index.vectors(), 200, seed=7)


def recall(index, queries, k=10):
    _, found = index.search(queries, k)
    _, wanted = ExactIndex.build(index.vectors(), list(index.doc_ids)).search(queries, k)
    pairs = zip(found, wanted, strict=True)
    return np.mean([len(set(row) & set(best)) / k for row, best in pairs])


def test_fewest_leaves_that_reach_the_target(index, queries):
    tuning = tune_scann(index, queries, target_recall=0.9)
    assert tuning.trials == sorted(tuning.trials, key=lambda trial: trial.seconds)
    for leaves, reorder, found, _ in tuning.trials:
        chosen = dataclasses.replace(index.parameters, num_leaves_to_search=leaves, reorder=reorder)
        assert found == pytest.approx(recall(index.searched_as(chosen), queries[::2]), abs=1e-3)
        assert found >= 0.9
        if leaves > 1:
            fewer = dataclasses.replace(chosen, num_leaves_to_search=leaves - 1)
            assert recall(index.searched_as(fewer), queries[::2]) < 0.9
    assert {trial.reorder for trial in tuning.trials} > {100, 1000}
    cheapest = tuning.trials[0]
    assert tuning.parameters.num_leaves_to_search == cheapest.leaves < 50
    assert tuning.parameters.reorder == cheapest.reorder
    held_out = recall(index.searched_as(tuning.parameters), queries[1::2])
    assert tuning.recall == pytest.approx(held_out, abs=1e-3)


def test_what_cannot_be_tuned(index, queries):
    with pytest.raises(ConfigError, match=r"`target_recall` must be in \(0, 1\]. Received: 1.5"):
        tune_scann(index, queries, target_recall=1.5)
    with pytest.raises(
        ConfigError, match="`number of queries` must be at least 20, for a target recall"
    ):
        tune_scann(index, queries[:19], target_recall=0.9)
    exact = ScannIndex.build(index.vectors()[:100], [f"d{i}" for i in range(100)])
    with pytest.raises(ConfigError, match="needs an index of kind hash or tree with `reorder`"):
        tune_scann(exact, queries, target_recall=0.9)
    other = dataclasses.replace(index.parameters, num_leaves=49)
    with pytest.raises(ConfigError, match="only `num_leaves_to_search` and `reorder` may differ"):
        index.searched_as(other)


def test_it_is_kept_by_the_files(index, queries, tmp_path):
    chosen = tune_scann(index, queries, target_recall=0.8).parameters
    tuned = index.searched_as(chosen)
    tuned.save(tmp_path / "index")
    loaded = ScannIndex.load(tmp_path / "index")
    assert loaded.parameters == chosen
    np.testing.assert_array_equal(loaded.search(queries, 10)[1], tuned.search(queries, 10)[1])


def test_dataset_and_model_belong_together(tmp_path, capsys):
    command = ["build-index", "--embeddings", "e", "--output", str(tmp_path / "i")]
    assert main([*command, "--dataset", "d"]) == 1
    assert "`--dataset` and `--model` belong together" in capsys.readouterr().err
