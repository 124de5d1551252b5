"""Our loss against sentence-transformers' MultipleNegativesRankingLoss, gradients included."""

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.retrieval_task import RetrievalTask

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def peer():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return pytest.importorskip("sentence_transformers")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("negatives", [0, 2])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_loss_and_gradients(peer, temperature, negatives, bidirectional):
    """Cosine similarity of embeddings of any length, scale = 1 / temperature."""
    import torch

    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    rng = np.random.default_rng(7)
    batch, dim = 6, 9
    columns = rng.normal(size=(2 + negatives, batch, dim))
    directions = ("query_to_doc", "doc_to_query") if bidirectional else ("query_to_doc",)
    loss = losses.MultipleNegativesRankingLoss(
        None, scale=1 / temperature, directions=directions, partition_mode="per_direction"
    )
    tensors = [torch.tensor(column, requires_grad=True) for column in columns]
    expected = loss.compute_loss_from_embeddings(tensors, None)
    expected.backward()

    task = RetrievalTask(temperature, bidirectional=bidirectional)
    queries = tf.constant(columns[0])
    candidates = tf.constant(columns[1:].reshape(-1, dim))
    keys = tf.range(1, len(candidates) + 1, dtype=tf.int64)
    with tf.GradientTape() as tape:
        tape.watch([queries, candidates])
        got = task(
            {"embeddings": tf.math.l2_normalize(queries, -1), "positive_keys": keys[:batch, None]},
            {"embeddings": tf.math.l2_normalize(candidates, -1), "keys": keys},
        )
    gradients = tape.gradient(got, [queries, candidates])
    np.testing.assert_allclose(got, expected.item(), rtol=1e-10)
    np.testing.assert_allclose(gradients[0], tensors[0].grad, atol=1e-10)
    theirs = np.concatenate([tensor.grad for tensor in tensors[1:]])
    np.testing.assert_allclose(gradients[1], theirs, atol=1e-10)
