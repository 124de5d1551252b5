"""sentence-transformers' MarginMSELoss gives the loss that MarginTask gives for given negatives."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.margins import MarginTask

pytestmark = pytest.mark.peers


def test_margin_mse_is_that_of_sentence_transformers():
    import torch

    library = importlib.import_module("sentence_transformers")
    losses = library.sentence_transformer.losses
    rng = np.random.default_rng(2)
    rows, width = 6, 3
    queries, positives = rng.normal(size=(2, rows, 5)).astype("float32")
    negatives = rng.normal(size=(rows, width, 5)).astype("float32")
    margins = rng.normal(size=(rows, width)).astype("float32")
    loss = losses.MarginMSELoss(model=None)
    columns = [queries, positives, *(negatives[:, i] for i in range(width))]
    expected = loss.compute_loss_from_embeddings(
        [torch.tensor(column) for column in columns], torch.tensor(margins)
    )
    keys = np.arange(1, rows + rows * width + 1)
    found = MarginTask()(
        {
            "embeddings": tf.constant(queries),
            "positive_keys": tf.constant(keys[:rows, None], tf.int64),
            "given_key": tf.constant(keys[rows:].reshape(rows, width), tf.int64),
            "given_margin": tf.constant(margins),
        },
        {
            "embeddings": tf.constant(np.concatenate([positives, negatives.reshape(-1, 5)])),
            "keys": tf.constant(keys, tf.int64),
        },
    )
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-5)
