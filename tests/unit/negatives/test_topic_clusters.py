import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.negatives import topic_clusters
from tfde.negatives.topic_clusters import cluster_queries


def blobs(sizes, seed=0):
    """Points close to the axes of a space, and which axis each belongs to."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    generator = np.random.default_rng(seed)
    points = np.eye(len(sizes))[truth] + 0.02 * generator.standard_normal((len(truth), len(sizes)))
    return points.astype(np.float32), truth


def same_partition(one, two):
    pairs = set(zip(one.tolist(), two.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(two.tolist()))


def test_far_apart_blobs_are_found():
    points, truth = blobs([30, 40, 50])
    found = min(
        (cluster_queries(points, 3, seed=seed) for seed in range(5)),
        key=lambda labels: np.abs(np.bincount(labels, minlength=3) - 40).sum(),
    )
    assert same_partition(found, truth)
    assert (cluster_queries(points, 3, seed=1) == cluster_queries(points, 3, seed=1)).all()


def test_small_clusters_are_dissolved_into_the_nearest():
    points, truth = blobs([60, 60, 60], seed=1)
    # Many clusters of few points; a whole blob together has more than 40.
    found = cluster_queries(points, 20, min_size=40)
    sizes = np.bincount(found)
    assert sizes.min() >= 40
    assert sizes.sum() == 180
    for label in range(len(sizes)):
        assert len(set(truth[found == label].tolist())) == 1
    assert (cluster_queries(points, 20, min_size=180) == 0).all()


def test_centres_of_a_sample_find_the_blobs_of_all(monkeypatch):
    points, truth = blobs([300, 400, 500])
    monkeypatch.setattr(topic_clusters, "_FITTED", 90)
    monkeypatch.setattr(topic_clusters, "_BLOCK", 128)
    assert any(same_partition(cluster_queries(points, 3, seed=seed), truth) for seed in range(5))
    found = cluster_queries(points, 40, min_size=20)
    assert np.bincount(found).min() >= 20
    assert len(cluster_queries(points, 120)) == 1200  # more centres than a sample has


def test_equal_queries_leave_no_gap_in_the_numbers():
    found = cluster_queries(np.ones((10, 4), np.float32), 3)
    assert set(found.tolist()) == set(range(int(found.max()) + 1))


@pytest.mark.parametrize(
    ("clusters", "options", "message"),
    [
        (0, {}, r"`clusters` must be at least 1\. Received: 0"),
        (1, {"min_size": 0}, r"`min_size` must be at least 1\. Received: 0"),
        (1, {"iterations": 0}, r"`iterations` must be at least 1\. Received: 0"),
        (5, {}, r"`clusters` must be at most the number of queries, 4\. Received: 5"),
        (1, {"min_size": 5}, r"`min_size` must be at most the number of queries, 4\. Received: 5"),
    ],
)
def test_impossible_values(clusters, options, message):
    with pytest.raises(ConfigError, match=message):
        cluster_queries(np.eye(4), clusters, **options)
