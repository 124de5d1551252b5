"""The retrieval task against its equations in float64 NumPy, gradients included."""

import numpy as np
import pytest
import tensorflow as tf
from softmax_in_numpy import reference, unit

from tfde.tasks.retrieval_task import RetrievalTask

B, M, D = 5, 2, 7  # queries, given negatives a query, embedding size


def run(task, queries, candidates, keys, positives, counts=None):
    q, c = tf.constant(queries), tf.constant(candidates)
    with tf.GradientTape() as tape:
        tape.watch([q, c])
        known = {} if counts is None else {"expected_counts": tf.constant(counts)}
        loss = task(
            {"embeddings": q, "positive_keys": tf.constant(positives, tf.int64)},
            {"embeddings": c, "keys": tf.constant(keys, tf.int64), **known},
        )
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, [q, c])]
    return float(loss), *gradients


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.05])
def test_in_batch_softmax_with_given_negatives(bidirectional, tau):
    rng = np.random.default_rng(0)
    queries, candidates = unit(rng, B), unit(rng, B + B * M)
    keys = np.arange(1, B + B * M + 1)
    positives = keys[:B, None]
    allowed = [set(range(B + B * M))] * B
    actual = run(
        RetrievalTask(tau, bidirectional=bidirectional), queries, candidates, keys, positives
    )
    expected = reference(queries, candidates, allowed, tau, bidirectional)
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_duplicates_other_positives_and_padding_are_left_out(bidirectional):
    rng = np.random.default_rng(1)
    queries, candidates = unit(rng, B), unit(rng, B + B * M)
    # Documents 0 and 3 are one document; document 1 is also known to answer query 4; a given
    # negative (row 7) is a copy of the positive of query 2; row 9 is padding.
    keys = np.arange(1, B + B * M + 1)
    candidates[3], keys[3] = candidates[0], keys[0]
    candidates[7], keys[7] = candidates[2], keys[2]
    keys[9] = 0
    positives = np.zeros((B, 2), np.int64)
    positives[:, 0] = keys[:B]
    positives[4, 1] = keys[1]
    everything = set(range(B + B * M)) - {9}
    allowed = [
        everything - {3},
        everything,
        everything - {7},
        everything - {0},
        everything - {1},
    ]
    tau = 0.1
    actual = run(
        RetrievalTask(tau, bidirectional=bidirectional), queries, candidates, keys, positives
    )
    expected = reference(queries, candidates, allowed, tau, bidirectional)
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_without_the_removal_an_oracle_is_punished_for_duplicates():
    # Two of four queries have the same document. With its copy removed a perfect model has no
    # loss; with the copy kept as a negative it cannot do better than log 2 on those two.
    documents = np.eye(D)[[0, 1, 2, 0]]
    removed, kept = np.array([1, 2, 3, 1]), np.array([1, 2, 3, 4])
    task = RetrievalTask(0.01)
    assert run(task, documents, documents, removed, removed[:, None])[0] < 1e-9
    loss = run(task, documents, documents, kept, kept[:, None])[0]
    np.testing.assert_allclose(loss, 2 / 4 * np.log(2), rtol=1e-9)


@pytest.mark.parametrize(
    "counts",
    [
        [0.5, 0.2, 0.1, 0.15, 0.05],
        [15.0, 6.0, 3.0, 4.5, 1.5],  # expected counts may be above 1
        [30.0, 1e-5, 1e-5, 1e-8, 0.5],  # tensorflow-recommenders' correction ends at 1e-6 and 1
    ],
)
def test_expected_counts_are_subtracted_but_for_the_own_positive(counts):
    rng = np.random.default_rng(2)
    queries, candidates = unit(rng, B), unit(rng, B)
    keys = np.arange(1, B + 1)
    counts = np.array(counts)
    loss, *_ = run(RetrievalTask(0.2), queries, candidates, keys, keys[:, None], counts)
    logits = queries @ candidates.T / 0.2
    corrected = logits - np.log(counts) * (1 - np.eye(B))
    expected = np.mean(np.log(np.exp(corrected).sum(1)) - np.diag(logits))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_corrected_batches_learn_the_softmax_over_the_corpus():
    """The gradient by the documents, over many batches, against that of the full softmax.

    Pairs are drawn from a joint distribution of 6 queries and 40 documents, some of which come
    up a thousand times as often as others. Without the correction the documents that come up
    often are pushed away, however large the batch is.
    """
    rng = np.random.default_rng(5)
    num_queries, num_documents, tau = 6, 40, 0.5
    queries, documents = unit(rng, num_queries), unit(rng, num_documents)
    weights = np.exp(rng.uniform(-7, 0, (num_queries, num_documents)))
    joint = weights / weights.sum()
    shares = joint.sum(0)
    logits = queries @ documents.T / tau
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    full = (joint.sum(1)[:, None] * softmax - joint).T @ queries / tau

    def error(batch, batches, corrected):
        task, mean = RetrievalTask(tau), np.zeros_like(documents)
        for _ in range(batches):
            drawn = rng.choice(joint.size, batch, p=joint.ravel())
            asked, found = np.divmod(drawn, num_documents)
            counts = (batch - 1) * shares[found] if corrected else None
            keys = found + 1
            inputs = (queries[asked], documents[found], keys, keys[:, None])
            np.add.at(mean, found, run(task, *inputs, counts)[2] / batches)
        return np.linalg.norm(mean - full) / np.linalg.norm(full)

    small, large = error(8, 2000, True), error(256, 200, True)
    assert large < 0.05 < small  # the logarithm of a small batch's sum is biased, its sum is not
    assert error(256, 200, False) > 4 * large


def test_permuted_documents_permute_the_gradient():
    rng = np.random.default_rng(3)
    queries, candidates = unit(rng, B), unit(rng, B)
    keys = np.arange(1, B + 1)
    task = RetrievalTask(0.1, bidirectional=True)
    loss, _, grad = run(task, queries, candidates, keys, keys[:, None])
    order = np.array([3, 0, 4, 1, 2])
    permuted = run(task, queries[order], candidates[order], keys[order], keys[order][:, None])
    np.testing.assert_allclose(permuted[0], loss, rtol=1e-12)
    np.testing.assert_allclose(permuted[2], grad[order], rtol=1e-9, atol=1e-13)
