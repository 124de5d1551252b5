import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.tasks.batch_metrics import InBatchAccuracy, update_metrics
from tfde.tasks.retrieval_task import RetrievalTask, candidate_mask


def keys(*values):
    return tf.constant(values, tf.int64)


def rows(queries, documents):
    """Both sides as a task takes them, every document the positive of one query."""
    own = tf.range(1, len(documents) + 1, dtype=tf.int64)
    return (
        {"embeddings": queries, "positive_keys": own[: len(queries), None]},
        {"embeddings": documents, "keys": own},
    )


def in_batch_accuracy(queries, candidates):
    metric = InBatchAccuracy()
    update_metrics([metric], queries, candidates)
    return metric.result()


def test_mask_by_hand():
    # Three queries; query 1 also knows document 30; one negative equal to document 10, one padding.
    mask = candidate_mask(
        keys(10, 20, 30, 10, 0), tf.constant([[10, 0], [20, 30], [30, 0]], tf.int64)
    )
    expected = [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]
    np.testing.assert_array_equal(mask.numpy(), np.array(expected, bool))


def test_constant_embeddings_score_chance_and_an_oracle_one():
    same = tf.ones([4, 3]) / 3**0.5
    assert float(in_batch_accuracy(*rows(same, same))) == pytest.approx(1 / 4)
    assert float(in_batch_accuracy(*rows(tf.eye(4), tf.eye(4)))) == 1.0
    np.testing.assert_allclose(float(RetrievalTask(0.05)(*rows(same, same))), np.log(4), rtol=1e-6)


def test_a_wrong_winner_counts_nothing():
    queries, documents = tf.eye(2), tf.eye(2)[::-1]
    assert float(in_batch_accuracy(*rows(queries, documents))) == 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ConfigError, match=r"`temperature` must be above 0\. Received: "):
        RetrievalTask(temperature)


@pytest.mark.parametrize(
    ("before", "keras"),
    [
        ("import keras_hub, tfde", "3."),
        ("import tfde, keras_hub", "3."),
        ("import tensorflow as tf; tf.keras.layers; import tfde", "3."),
        ("import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'; import tfde, keras_hub", "2."),
    ],
)
def test_any_order_of_imports_does_and_tf_keras_stays_what_it_was(before, keras):
    code = (
        f"{before}\n"
        "import os\n"
        "environment = dict(os.environ)\n"
        "import tensorflow as tf\n"
        "loss = tfde.RetrievalTask(temperature=1.0)(\n"
        "    {'embeddings': tf.eye(2), 'positive_keys': tf.constant([[1], [2]], tf.int64)},\n"
        "    {'embeddings': tf.eye(2), 'keys': tf.constant([1, 2], tf.int64)})\n"
        "print(float(loss), dict(os.environ) == environment)\n"
        "import keras_hub, keras\n"
        "assert issubclass(keras_hub.models.BertBackbone, keras.Model)\n"
        f"assert isinstance(tf.keras.layers.Dense(2), keras.layers.Layer) == ({keras!r} == '3.')\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    loss, unchanged = done.stdout.split()
    # -log(e / (e + 1)): cosine 1 with the own document, 0 with the other.
    assert float(loss) == pytest.approx(np.log1p(np.exp(-1.0)), rel=1e-6)
    assert unchanged == "True"


def test_importing_tfde_leaves_the_environment_alone():
    code = "import os; before = dict(os.environ); import tfde; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", code], check=True)
