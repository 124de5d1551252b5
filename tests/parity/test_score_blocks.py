"""Loss, accuracy and gradients by blocks of queries against the whole matrix of scores."""

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.retrieval_task import RetrievalTask, in_batch_accuracy
from tfde.tasks.score_blocks import loss_and_accuracy

B, C, Q, D = 7, 15, 4, 5


def problem(*, bidirectional, correction, others):
    rng = np.random.default_rng(0)
    queries, candidates, more = (rng.normal(size=(rows, D)) for rows in (B, C, Q))
    keys = np.arange(1, C + 1)
    keys[3], keys[9], keys[14] = keys[0], keys[2], 0  # two accidental hits, one padding
    positives = np.zeros((B + Q, 2), np.int64)
    positives[:B, 0] = keys[:B]
    positives[B:, 0] = rng.integers(1, C, Q)
    positives[4, 1] = keys[1]
    task = RetrievalTask(0.3, bidirectional=bidirectional, sampling_correction=correction)
    arguments = {
        "candidate_keys": tf.constant(keys, tf.int64),
        "positive_keys": tf.constant(positives[:B]),
        "candidate_sampling_probability": tf.constant(rng.uniform(0.1, 1, C))
        if correction
        else None,
    }
    known = tf.constant(positives[B:]) if others else None
    return task, [tf.constant(x) for x in (queries, candidates, more)], arguments, known


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize(
    ("bidirectional", "correction", "others"),
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_blocks_add_up_to_the_whole(rows, bidirectional, correction, others):
    task, sides, arguments, known = problem(
        bidirectional=bidirectional, correction=correction, others=others
    )

    @tf.function
    def run(call, queries, candidates, more):
        with tf.GradientTape() as tape:
            tape.watch([queries, candidates, more])
            other = (more, known) if others else None
            loss, accuracy = call(queries, candidates, other)
            loss *= 3.0  # as if by a scale of the loss
        return (
            loss,
            accuracy,
            *tape.gradient(loss, [queries, candidates, more], unconnected_gradients="zero"),
        )

    def whole(queries, candidates, other):
        loss = task(queries, candidates, other_queries=other, **arguments)
        keys = {name: arguments[name] for name in ("candidate_keys", "positive_keys")}
        return loss, in_batch_accuracy(queries, candidates, **keys)

    def blocks(queries, candidates, other):
        return loss_and_accuracy(
            task, queries, candidates, other_queries=other, rows=rows, **arguments
        )

    for found, expected in zip(run(blocks, *sides), run(whole, *sides), strict=True):
        tolerance = 1e-6 if found.dtype == tf.float32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
