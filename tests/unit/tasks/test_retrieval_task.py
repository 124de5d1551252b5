import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.tasks.retrieval_task import RetrievalTask, candidate_mask, in_batch_accuracy


def keys(*values):
    return tf.constant(values, tf.int64)


def test_mask_by_hand():
    # Three queries; query 1 also knows document 30; one negative equal to document 10, one padding.
    mask = candidate_mask(
        keys(10, 20, 30, 10, 0), tf.constant([[10, 0], [20, 30], [30, 0]], tf.int64)
    )
    expected = [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]
    np.testing.assert_array_equal(mask.numpy(), np.array(expected, bool))


def test_constant_embeddings_score_chance_and_an_oracle_one():
    same = tf.ones([4, 3]) / 3**0.5
    arguments = {"candidate_keys": keys(1, 2, 3, 4), "positive_keys": keys(1, 2, 3, 4)[:, None]}
    assert float(in_batch_accuracy(same, same, **arguments)) == pytest.approx(1 / 4)
    assert float(in_batch_accuracy(tf.eye(4), tf.eye(4), **arguments)) == 1.0
    np.testing.assert_allclose(
        float(RetrievalTask(0.05)(same, same, **arguments)), np.log(4), rtol=1e-6
    )


def test_a_wrong_winner_counts_nothing():
    queries, documents = tf.eye(2), tf.eye(2)[::-1]
    arguments = {"candidate_keys": keys(1, 2), "positive_keys": keys(1, 2)[:, None]}
    assert float(in_batch_accuracy(queries, documents, **arguments)) == 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ConfigError, match=r"`temperature` must be above 0\. Received: "):
        RetrievalTask(temperature)


def test_too_late_for_keras_2_says_which_import_came_first():
    code = (
        "import keras_hub, os\n"
        "import tfde\n"
        "from tfde.tasks.retrieval_task import RetrievalTask\n"
        "RetrievalTask()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_env())
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "'keras_hub' was imported before tfde" in last
    assert "import tfde first" in last
    assert "TF_USE_LEGACY_KERAS=1" in last


def _env():
    import os

    return {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
