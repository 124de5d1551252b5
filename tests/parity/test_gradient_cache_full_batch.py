"""Gradients by chunks against one tape over the whole batch."""

import gradients as of
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.tasks.adapters import SumTask
from tfde.tasks.anchor import AnchorTask
from tfde.tasks.guided import GuidedTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask

B, CHUNK = 10, 4  # the last chunk of each side is smaller
# Sums of some hundred tokens' shares of both signs, taken in another order: 6e-8 each.
FLOAT32 = 2e-5
BERT, T5, BAG_OF_WORDS = tiny.BERT, tiny.T5, tiny.BAG_OF_WORDS
NEGATIVES = {"negatives": 2, "positives": 2}
VARIANTS = {
    "bert": (BERT, {}, {}, {}),
    "t5": (T5, {}, {}, {}),
    "bag_of_words": (BAG_OF_WORDS, {}, {}, {}),
    "separate_towers": (BERT, {"sharing": "ade", "embedding_dim": 5}, {}, {}),
    "frozen_embedder": (T5, {"sharing": "ade_fte"}, {}, {}),
    "hard_negatives": (BERT, {}, {}, {"negatives": 2}),
    "bidirectional": (BERT, {}, {"bidirectional": True}, {"negatives": 1, "positives": 3}),
    "sampling_correction": (T5, {}, {"sampling_correction": True}, {"negatives": 1}),
    "anchored": (BERT, {"embedding_dim": 3}, {"anchored": True}, NEGATIVES),
    "guided_and_cut": (BERT, {"embedding_dim": 5}, {"guided": True, "dims": (2, 5)}, NEGATIVES),
}


def build(backbone, *, dropout, task, **options):
    model = tiny.dual_encoder(backbone, dropout=dropout, **options)
    return model, {"task": task_of(**task)}


def task_of(*, guided=False, anchored=False, dims=None, **options):
    task = RetrievalTask(0.1, **options)
    if anchored:
        anchor = AnchorTask(tiny.dual_encoder(T5, seed=8, embedding_dim=3), score_weight=0.5)
        task = SumTask([task, anchor])
    if guided:
        guide = tiny.dual_encoder(T5, seed=8, embedding_dim=3)
        task = GuidedTask(guide, 0.1, score_margin=0.02, **options)
    return task if dims is None else MatryoshkaTask(task, dims, (0.5, 1.0))


def one_tape(model, batch, *, chunk_size, task):
    """Loss and gradients of the chunks' embeddings as one computation, chunks cut by NumPy."""
    model.compile(task=task)
    prepared = {name: np.array(part) for name, part in model.prepare_batch(batch).items()}
    with tf.GradientTape() as tape:
        embeddings = []
        for side, tower in (("query", model.query_tower), ("document", model.document_tower)):
            token_ids, mask = (prepared[f"{side}_{name}"] for name in ("token_ids", "padding_mask"))
            lengths = mask.sum(1)
            order = np.argsort(-lengths, kind="stable")
            parts = []
            for start in range(0, len(order), chunk_size):
                rows = order[start : start + chunk_size]
                cut = slice(lengths[rows].max())
                chunk = {"token_ids": token_ids[rows, cut], "padding_mask": mask[rows, cut]}
                parts.append(tower(chunk, training=True))
            embeddings.append(tf.gather(tf.concat(parts, 0), np.argsort(order)))
        prepared = {name: tf.constant(part) for name, part in prepared.items()}
        loss = model.loss_of_embeddings(*embeddings, prepared)
    found = tape.gradient(loss, model.trainable_weights)
    paths = [weight.path for weight in model.trainable_weights]
    return float(loss), {
        path: tf.convert_to_tensor(gradient).numpy()
        for path, gradient in zip(paths, found, strict=True)
    }


def assert_close(actual, expected, tolerance):
    """Each gradient to `tolerance` of the largest of its own, or a millionth of the largest."""
    assert actual.keys() == expected.keys()
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for path, gradient in expected.items():
        bound = tolerance * max(np.abs(gradient).max(), 1e-3 * largest)
        np.testing.assert_allclose(actual[path], gradient, rtol=0, atol=bound, err_msg=path)


def random_states(model):
    weights = {id(weight) for weight in model.weights}
    return [v.numpy() for v in model.query_tower.variables if id(v) not in weights]


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_gradients_are_those_of_the_full_batch(variant):
    backbone, options, task, kind = VARIANTS[variant]
    batch = of.random_pairs(B, **kind)
    model, compiled = build(backbone, dropout=0.0, task=task, **options)
    full_loss, full = one_tape(model, batch, chunk_size=len(batch["query"]) * 9, **compiled)
    loss, _, cached = of.take_step(model, batch, chunk_size=CHUNK, **compiled)
    np.testing.assert_allclose(loss, full_loss, rtol=1e-6)
    assert_close(cached, full, FLOAT32)


@pytest.mark.parametrize(
    ("variant", "run_eagerly"),
    [("bert", True), ("frozen_embedder", False), ("bidirectional", False)],
)
def test_dropout_falls_alike_in_both_passes(variant, run_eagerly):
    backbone, options, task, kind = VARIANTS[variant]
    batch = of.random_pairs(B, **kind)
    model, compiled = build(backbone, dropout=0.3, task=task, **options)
    reference, _ = build(backbone, dropout=0.3, task=task, **options)
    expected_loss, expected = one_tape(reference, batch, chunk_size=CHUNK, **compiled)
    loss, _, cached = of.take_step(
        model, batch, chunk_size=CHUNK, run_eagerly=run_eagerly, **compiled
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert_close(cached, expected, FLOAT32)
    # The second pass left the states where the first, or one tape over all chunks, leaves them.
    for state, other in zip(random_states(model), random_states(reference), strict=True):
        np.testing.assert_array_equal(state, other)


@pytest.mark.parametrize(
    ("policy", "run_eagerly", "tolerance"),
    [
        # The same kernels on the same chunks: each chunk's gradient is rounded to half precision
        # on both sides alike, then added up in float32.
        ("mixed_bfloat16", True, 1e-5),
        # Graph rewrites fuse kernels and so leave out roundings, of 2^-9 each.
        ("mixed_bfloat16", False, 2**-5),
        # The loss is scaled by 2^15, a power of two: nothing but small numbers changes, which
        # without it would be lost below 2^-24.
        ("mixed_float16", True, 2**-6),
    ],
)
def test_dropout_falls_alike_in_mixed_precision(policy, run_eagerly, tolerance):
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        batch = of.random_pairs(B, negatives=1)
        model, compiled = build(BERT, dropout=0.3, task={})
        reference, _ = build(BERT, dropout=0.3, task={})
        expected_loss, expected = one_tape(reference, batch, chunk_size=CHUNK, **compiled)
        loss, _, cached = of.take_step(
            model, batch, chunk_size=CHUNK, run_eagerly=run_eagerly, **compiled
        )
    finally:
        keras.config.set_dtype_policy(previous)
    np.testing.assert_allclose(loss, expected_loss, rtol=tolerance)
    assert_close(cached, expected, tolerance)
    assert max(np.abs(gradient).max() for gradient in cached.values()) > 0
