"""Loss and gradients by blocks of queries against the whole matrix of scores."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.guided import GuidedTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.score_blocks import loss_by_blocks

B, C, Q, D = 7, 15, 4, 5
NO_GUIDE = types.SimpleNamespace(query_tower=None)  # what it knows of the rows is given below


def problem(*, bidirectional, correction, others):
    """Rows of queries, of candidates and of other queries, with all that any task knows of them."""
    rng = np.random.default_rng(0)
    keys = np.arange(1, C + 1)
    keys[3], keys[9], keys[14] = keys[0], keys[2], 0  # two accidental hits, one padding
    positives = np.zeros((B + Q, 2), np.int64)
    positives[:B, 0] = keys[:B]
    positives[B:, 0] = rng.integers(1, C, Q)
    positives[4, 1] = keys[1]
    everyone = {
        "embeddings": rng.normal(size=(B + Q, D)),
        "positive_keys": positives,
        "guide_embeddings": rng.normal(size=(B + Q, 3)),
        "guide_limit": rng.normal(size=B + Q),
    }
    queries = {name: tf.constant(rows[:B]) for name, rows in everyone.items()}
    more = {name: tf.constant(rows[B:]) for name, rows in everyone.items()}
    candidates = {
        "embeddings": tf.constant(rng.normal(size=(C, D))),
        "keys": tf.constant(keys),
        "guide_embeddings": tf.constant(rng.normal(size=(C, 3))),
    }
    if correction:
        candidates["expected_counts"] = tf.constant(rng.uniform(0.1, 1, C))
    return queries, candidates, more if others else None


def plain(**options):
    return RetrievalTask(0.3, **options)


def guided(**options):
    return GuidedTask(NO_GUIDE, 0.3, **options)


def nested(**options):
    return MatryoshkaTask(guided(**options), (2, D), (0.7, 1.0))


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize(
    ("task", "bidirectional", "correction", "others"),
    [
        (plain, False, False, False),
        (plain, False, True, False),
        (plain, True, False, False),
        (plain, True, True, True),
        (guided, False, False, False),
        (guided, True, False, True),
        (nested, True, True, True),
    ],
)
def test_blocks_add_up_to_the_whole(rows, task, bidirectional, correction, others):
    known = problem(bidirectional=bidirectional, correction=correction, others=others)
    task = task(bidirectional=bidirectional, sampling_correction=correction)
    sides = [part["embeddings"] for part in known if part is not None]

    @tf.function
    def run(call, *embeddings):
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            given = zip(known, [*embeddings, None][:3], strict=True)
            loss = call(*(part and {**part, "embeddings": x} for part, x in given))
            loss *= 3.0  # as if by a scale of the loss
        return loss, *tape.gradient(loss, embeddings, unconnected_gradients="zero")

    def whole(queries, candidates, other):
        return task(queries, candidates, other_queries=other)

    def blocks(queries, candidates, other):
        return loss_by_blocks(task, queries, candidates, other_queries=other, rows=rows)

    for found, expected in zip(run(blocks, *sides), run(whole, *sides), strict=True):
        tolerance = 1e-6 if found.dtype == tf.float32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
