"""An index in parts on several servers: merged answers, and what is missing is said."""

import json

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tfde.cli.main import main
from tfde.errors import ConfigError, ServerError
from tfde.serving.server.versions import model_config, server_config
from tfde.serving.sharded_client import ShardedClient

SHARDS = 3
NUMBERS = np.random.default_rng(5).permutation(60)


class Part(tf.Module):
    """Numbers instead of documents; the score of one is how near it is to the query."""

    def __init__(self, numbers):
        self.numbers = tf.constant(numbers, tf.float32)
        self.doc_ids = tf.constant([f"d{number:02}" for number in numbers])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([], tf.int32, name="k"),
        ]
    )
    def search(self, text, k):
        wanted = tf.strings.to_number(text)[:, None]
        k = tf.minimum(k, tf.size(self.numbers))
        scores, rows = tf.math.top_k(-tf.abs(wanted - self.numbers[None]), k)
        return {"doc_ids": tf.gather(self.doc_ids, rows), "scores": scores}


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    made = []
    for shard in range(SHARDS):
        folder = tmp_path_factory.mktemp("shard")
        part = Part(NUMBERS[shard::SHARDS])
        path = folder / "retriever" / "1"
        tf.saved_model.save(part, str(path), {"serving_default": part.search})
        config = folder / "models.config"
        models = server_config(model_config("retriever", folder / "retriever"))
        config.write_text(text_format.MessageToString(models))
        made.append(config)
    return made


def expected(wanted, k):
    ranked = sorted(range(60), key=lambda number: (abs(number - wanted), number))
    return [f"d{number:02}" for number in ranked[:k]]


def test_merging_and_losing_shards(configs, start_server, capsys):
    servers = [start_server(config) for config in configs]
    targets = [server.target for server in servers]
    with ShardedClient(targets, timeout_s=20) as client:
        answer = client.search(["31", "0.0"], k=7)
        assert answer.complete
        assert answer.answered == targets
        assert [hit.doc_id for hit in answer.hits[0]] == expected(31, 7)
        assert [hit.doc_id for hit in answer.hits[1]] == expected(0, 7)
        assert [hit.rank for hit in answer.hits[0]] == list(range(1, 8))
        assert [hit.score for hit in answer.hits[1]] == [-0.0, -1, -2, -3, -4, -5, -6]
        assert len(client.search(["5"], k=100).hits[0]) == 60

        twice = [targets[0], targets[0].replace("localhost", "127.0.0.1")]
        if twice[1] == twice[0]:
            twice[1] = targets[0].replace("127.0.0.1", "localhost")
        with ShardedClient([*twice, *targets[1:]], timeout_s=20) as doubled:
            answer = doubled.search(["31"], k=7)
            assert [hit.doc_id for hit in answer.hits[0]] == expected(31, 7)

        servers[1].process.kill()
        servers[1].process.wait()
        answer = client.search(["31"], k=60)
        assert not answer.complete
        assert answer.answered == [targets[0], targets[2]]
        assert list(answer.failed) == [targets[1]]
        assert answer.failed[targets[1]].startswith(f"cannot connect to {targets[1]}")
        lost = {f"d{number:02}" for number in NUMBERS[1::SHARDS]}
        left = [doc_id for doc_id in expected(31, 60) if doc_id not in lost]
        assert [hit.doc_id for hit in answer.hits[0]] == left
    with (
        ShardedClient(targets, timeout_s=20, min_shards=3) as strict,
        pytest.raises(ServerError, match=r"2 of 3 shards answered, at least 3 must; cannot"),
    ):
        strict.search(["31"])
    assert main(["query", "31", "--target", ",".join(targets), "-k", "2", "--json"]) == 1
    out, error = capsys.readouterr()
    assert len(json.loads(out)["hits"]) == 2
    assert error.startswith(f"tfde query: without the shard {targets[1]}: cannot connect")


def test_impossible_clients():
    with pytest.raises(ConfigError, match=r"`targets` must be not empty"):
        ShardedClient([])
    with pytest.raises(ConfigError, match=r"`targets` must be different"):
        ShardedClient(["a:1", "a:1"])
    with pytest.raises(ConfigError, match=r"`min_shards` must be in \[1, 1\]"):
        ShardedClient(["a:1"], min_shards=2)
