"""The distance to another model against NumPy, and what it does in training."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError
from tfde.tasks.anchor import AnchorTask

B, M, D = 4, 3, 5
NO_MODEL = types.SimpleNamespace(query_tower=None)


def loss_of(model, pairs):
    return model.evaluate(pairs, verbose=0, return_dict=True)["loss"]


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 2.0), (0.3, 0.7)])
def test_the_equation(weights, padding):
    """As the docstring has it; what is padded may hold anything."""
    rng = np.random.default_rng(3)
    queries, anchors_q = rng.normal(size=(2, B, D))
    documents, anchors_d = rng.normal(size=(2, B + M, D))
    real = B + M - padding
    task = AnchorTask(NO_MODEL, embedding_weight=weights[0], score_weight=weights[1])
    keys = np.where(np.arange(B + M) < real, np.arange(1, B + M + 1), 0)
    found = task(
        {"embeddings": tf.constant(queries), "anchors": tf.constant(anchors_q)},
        {"embeddings": tf.constant(documents), "anchors": tf.constant(anchors_d), "keys": keys},
    )
    documents, anchors_d = documents[:real], anchors_d[:real]
    distance = sum(
        np.mean(((ours - theirs) ** 2).sum(1) / (theirs**2).sum(1))
        for ours, theirs in ((queries, anchors_q), (documents, anchors_d))
    )
    theirs = log_softmax(anchors_q @ anchors_d.T / 0.05)
    ours = log_softmax(queries @ documents.T / 0.05)
    divergence = (np.exp(theirs) * (theirs - ours)).sum(1).mean()
    expected = weights[0] * distance / 4 + weights[1] * divergence
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_a_model_is_no_distance_from_itself_and_is_drawn_back():
    """At the start loss and gradient are 0; away from it a step leads nearer."""
    start, model = (tiny.dual_encoder(tiny.T5, seed=4, dropout=0.0) for _ in range(2))
    model.compile(
        tfde.adamw(1e-2, decay_steps=None, weight_decay=0.0),
        task=AnchorTask(start, score_weight=1.0),
    )
    pairs = [("red", "green dog"), ("blue fish", "one two"), ("lake", "cherry")]
    assert loss_of(model, pairs) == pytest.approx(0.0, abs=1e-6)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign_add(rng.normal(size=weight.shape) * 0.3)
    away = loss_of(model, pairs)
    model.fit(pairs, batch_size=3, epochs=20, verbose=0)
    assert loss_of(model, pairs) < 0.3 * away


def test_embeddings_of_another_length_have_scores_alone():
    other = tiny.dual_encoder(tiny.T5, embedding_dim=3)
    model = tiny.dual_encoder(embedding_dim=6)
    pairs = [("red", "green dog"), ("blue fish", "one two")]
    model.compile("adam", task=AnchorTask(other, embedding_weight=0.0, score_weight=1.0))
    assert loss_of(model, pairs) > 0
    model.compile("adam", task=AnchorTask(other))
    message = "`embedding_weight` must be 0 for an anchor whose embeddings have 3 numbers.*: 6"
    with pytest.raises(ConfigError, match=message):
        loss_of(model, pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_weight": -1}, "`embedding_weight` must be a number from 0"),
        ({"embedding_weight": 0}, "`embedding_weight` must be above 0, or score_weight is"),
        ({"temperature": 0}, "`temperature` must be above 0"),
    ],
)
def test_impossible_anchors(options, message):
    with pytest.raises(ConfigError, match=message):
        AnchorTask(NO_MODEL, **options)
    with pytest.raises(ConfigError, match="`model` must be a model of two towers"):
        AnchorTask("path")
