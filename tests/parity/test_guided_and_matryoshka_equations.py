"""The guide's mask and the sum over first numbers against NumPy, gradients included."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tiny
from softmax_in_numpy import reference, unit

from tfde.errors import ConfigError
from tfde.tasks.guided import GuidedTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask

B, M, D = 5, 2, 7
NO_GUIDE = types.SimpleNamespace(query_tower=None)


def run(task, queries, candidates, of_queries=(), of_candidates=()):
    q, c = tf.constant(queries), tf.constant(candidates)
    keys = tf.range(1, len(candidates) + 1, dtype=tf.int64)
    with tf.GradientTape() as tape:
        tape.watch([q, c])
        loss = task(
            {"embeddings": q, "positive_keys": keys[: len(queries), None], **dict(of_queries)},
            {"embeddings": c, "keys": keys, **dict(of_candidates)},
        )
    return float(loss), *(np.array(tf.convert_to_tensor(g)) for g in tape.gradient(loss, [q, c]))


def kept(queries, documents, *, score_margin, relative_margin):
    """By the guide's embeddings, which candidates stay, as the docstring says it."""
    cosine = queries @ documents.T
    cosine /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    allowed = []
    for i, row in enumerate(cosine):
        limit = min(row[i] - score_margin, row[i] - relative_margin * abs(row[i]))
        allowed.append({j for j, value in enumerate(row) if j == i or value <= limit})
    return allowed


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("score_margin", "relative_margin"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.3), (0.1, 0.3)]
)
def test_the_guide_leaves_out_what_it_takes_for_an_answer(
    score_margin, relative_margin, bidirectional
):
    rng = np.random.default_rng(1)
    queries, candidates = unit(rng, B), unit(rng, B + B * M)
    # Embeddings of the guide in the place of its towers: `describe` brings them to unit length.
    guide_queries, guide_documents = rng.normal(size=(B, 3)), rng.normal(size=(B + B * M, 3))
    guide_documents[:B] += 1.5 * guide_queries  # positives have high scores, some have not
    margins = {"score_margin": score_margin, "relative_margin": relative_margin}
    guide = types.SimpleNamespace(
        query_tower=lambda tokens, training: tf.constant(guide_queries),
        document_tower=lambda tokens, training: tf.constant(guide_documents),
    )
    task = GuidedTask(guide, 0.1, bidirectional=bidirectional, **margins)
    nothing = dict.fromkeys(
        f"other_{side}_{name}"
        for side in ("query", "document")
        for name in ("token_ids", "padding_mask")
    )
    known = task.describe(nothing, chunk_size=None)
    allowed = kept(guide_queries, guide_documents, **margins)
    assert 1 < min(map(len, allowed)) < B + B * M  # something stays, something goes
    expected = reference(queries, candidates, allowed, 0.1, bidirectional)
    for got, want in zip(run(task, queries, candidates, *known), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_a_guide_reads_the_texts_of_the_batch_and_of_the_given_negatives():
    """Through real towers of a size of their own: what is asked of them is what they encode."""
    guide = tiny.dual_encoder(seed=9, embedding_dim=4)
    batch = {
        "query": tf.constant(["red green", "blue"]),
        "document_title": tf.constant(["cat", ""]),
        "document_text": tf.constant(["red dog", "blue fish"]),
        "negative_title": tf.constant([[""], [""]]),
        "negative_text": tf.constant([["stone"], ["river lake"]]),
    }
    task = GuidedTask(guide)
    for chunk_size in (None, 1):
        prepared = task.prepare(batch, replicas=1)
        of_queries, of_documents = task.describe(prepared, chunk_size=chunk_size)
        documents = [("cat", "red dog"), ("", "blue fish"), ("", "stone"), ("", "river lake")]
        texts = [{"title": title, "text": text} for title, text in documents]
        queries = guide.encode_queries(["red green", "blue"])
        found = guide.encode_documents(texts)
        np.testing.assert_allclose(of_queries["guide_embeddings"], queries, atol=1e-6)
        np.testing.assert_allclose(of_documents["guide_embeddings"], found, atol=1e-6)
        np.testing.assert_allclose(
            of_queries["guide_limit"], (queries * found[:2]).sum(1), atol=1e-6
        )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weights", [None, (0.25, 0.0, 2.0)])
def test_the_sum_over_first_numbers(weights, normalize):
    rng = np.random.default_rng(2)
    queries, candidates = unit(rng, B), unit(rng, B + 3)
    dims = (2, 4, D)
    everything = [set(range(B + 3))] * B
    expected = [0.0, np.zeros_like(queries), np.zeros_like(candidates)]
    for dim, weight in zip(dims, weights or (1, 1, 1), strict=True):
        sides = [rows[:, :dim] for rows in (queries, candidates)]
        lengths = [np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
        cut = [side / length if normalize else side for side, length in zip(sides, lengths)]  # noqa: B905
        loss, *gradients = reference(*cut, everything, 0.2, True)
        expected[0] += weight * loss
        for total, x, length, gradient in zip(expected[1:], cut, lengths, gradients, strict=True):
            if normalize:  # that of x / |x|: what stands upright on x
                gradient = (gradient - x * (x * gradient).sum(1, keepdims=True)) / length
            total[:, :dim] += weight * gradient
    task = MatryoshkaTask(
        RetrievalTask(0.2, bidirectional=True), dims, weights, normalize=normalize
    )
    for got, want in zip(run(task, queries, candidates), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GuidedTask("path"), r"`guide` must be a model of two towers, such as tfde\.Du"),
        (lambda: GuidedTask(NO_GUIDE, score_margin=-1), r"`score_margin` must be at least 0"),
        (lambda: GuidedTask(NO_GUIDE, relative_margin=1), r"`relative_margin` must be in \[0, 1\)"),
        (lambda: MatryoshkaTask(RetrievalTask(), ()), "`dims` must be ascending numbers from 1"),
        (lambda: MatryoshkaTask(RetrievalTask(), (4, 2)), r"`dims` must be ascending.*\(4, 2\)"),
        (
            lambda: MatryoshkaTask(RetrievalTask(), (2, 4), (1.0,)),
            r"`weights` must be 2 numbers from 0, one for each of `dims`, and not all 0\. Received",
        ),
        (
            lambda: run(MatryoshkaTask(RetrievalTask(), (9,)), np.eye(D)[:2], np.eye(D)),
            r"`dims` must be at most 7, the length of an embedding\. Received: 9",
        ),
    ],
)
def test_impossible_tasks(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
