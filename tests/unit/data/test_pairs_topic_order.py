"""Batches of one topic: pure, full, a function of seed and step."""

import itertools
import json

import numpy as np
import pytest

from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.query_clusters import read_clusters, write_clusters
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Pair, Query

# Query number i is of topic i % 3; topic 0 has 34 of 100 pairs, the others 33.
ROWS = [Pair(Query(f"q{i}", f"query {i}"), Document(f"d{i}", "", f"text {i}")) for i in range(100)]
CLUSTERS = {f"q{i}": 10 * (i % 3) for i in range(100)}


def rows_of(data, first, steps):
    return [data.rows(step).tolist() for step in range(first, first + steps)]


def test_every_batch_is_of_one_topic_and_an_epoch_takes_each_pair_once_at_most():
    data = PairDataset(ROWS, batch_size=8, seed=3, clusters=CLUSTERS)
    assert data.steps_per_epoch == 12  # 4 full batches of each topic
    for epoch in range(5):
        batches = rows_of(data, 12 * epoch, 12)
        assert all(len(batch) == 8 and len({row % 3 for row in batch}) == 1 for batch in batches)
        assert len({row for batch in batches for row in batch}) == 96
        assert sorted(batch[0] % 3 for batch in batches) == [0] * 4 + [1] * 4 + [2] * 4
    seen = {row for batch in rows_of(data, 0, 60) for row in batch}
    assert seen == set(range(100))  # what an epoch leaves out stands in another


def test_topics_follow_each_other_in_random_order():
    data = PairDataset(ROWS, batch_size=8, clusters=CLUSTERS)
    topics = [batch[0] % 3 for batch in rows_of(data, 0, 1200)]
    followers = np.bincount([3 * a + b for a, b in itertools.pairwise(topics)])
    assert followers.min() > 0.5 * 1200 / 9


def test_a_batch_depends_on_seed_and_step_alone():
    data = PairDataset(ROWS, batch_size=8, seed=3, clusters=CLUSTERS)
    unbroken = rows_of(data, 0, 40)
    again = PairDataset(ROWS, batch_size=8, seed=3, clusters=CLUSTERS)
    assert rows_of(again, 25, 15) == unbroken[25:]
    assert rows_of(again, 0, 25) == unbroken[:25]
    other = PairDataset(ROWS, batch_size=8, seed=4, clusters=CLUSTERS)
    assert rows_of(other, 0, 40) != unbroken
    (batch,) = data.dataset(start_step=30, steps=1)
    assert batch["query"].numpy().tolist() == [f"query {i}".encode() for i in unbroken[30]]


def test_impossible_clusters():
    with pytest.raises(ConfigError, match=r"every query\. Received: none for 'q0'"):
        PairDataset(ROWS, batch_size=8, clusters={"q1": 0})
    with pytest.raises(ConfigError, match=r"fill a batch of 34 pairs; .* cluster 10 with 33"):
        PairDataset(ROWS, batch_size=34, clusters=CLUSTERS)
    with pytest.raises(ConfigError, match="`clusters` need `shuffle`"):
        PairDataset(ROWS, batch_size=8, clusters=CLUSTERS, shuffle=False)


def test_a_file_of_clusters(tmp_path):
    write_clusters(tmp_path / "c.jsonl.gz", CLUSTERS)
    assert read_clusters(tmp_path / "c.jsonl.gz") == CLUSTERS


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"query_id": "a", "cluster": -1}], r"c\.jsonl:1: field 'cluster' must be a whole number"),
        ([{"query_id": "a", "cluster": True}], "field 'cluster' must be a whole number"),
        ([{"query_id": "a"}], "field 'cluster' must be a whole number"),
        ([{"cluster": 1}], "field 'query_id' is missing"),
        ([{"query_id": "a", "cluster": 1}] * 2, r"c\.jsonl:2: field 'query_id' must be unique"),
        ([], "must hold at least one query"),
    ],
)
def test_bad_files_of_clusters(tmp_path, records, message):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(DataError, match=message):
        read_clusters(path)
