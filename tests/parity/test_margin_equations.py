"""Margins of one teacher and of two against NumPy, one query and candidate after the other."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.model import TextConfig
from tfde.errors import ConfigError
from tfde.matching.matcher import Matcher
from tfde.tasks.margins import MarginTask

B, M, D = 4, 2, 6
WEIGHTS = {"pair_weight": 0.7, "batch_weight": 0.3}


def inputs(seed=0):
    """Embeddings, keys and margins of a batch in which two queries have one negative in common."""
    rng = np.random.default_rng(seed)
    queries, candidates = rng.normal(size=(B, D)), rng.normal(size=(B + B * M, D))
    keys = np.arange(1, B + B * M + 1)
    keys[B] = keys[-1] = 99  # of the first query and of the last
    keys[B + M] = 0  # the second query has one negative less
    candidates[-1] = candidates[B]
    margins = rng.normal(size=(B, M))
    margins[1, 0] = 0.0
    return queries, candidates, keys, margins


def reference(queries, candidates, keys, margins, temperature, teacher=None):
    """The loss by the docstring; `teacher` (B, C) are its scores."""
    total = 0.0
    for i, query in enumerate(queries):
        scores = candidates @ query / temperature
        of_pairs = []
        for place in range(M):
            key = keys[B + i * M + place]
            # What stands among the candidates twice counts once.
            of_copies = [
                (scores[i] - scores[j] - margins[i, place]) ** 2
                for j in range(len(keys))
                if key != 0 and keys[j] == key and not np.isnan(margins[i, place])
            ]
            if of_copies:
                of_pairs.append(np.mean(of_copies))
        of_batch = []
        for j in range(len(keys)):
            if j != i and keys[j] != 0 and teacher is not None:
                wanted = teacher[i, i] - teacher[i, j]
                of_batch.append((scores[i] - scores[j] - wanted) ** 2)
        total += WEIGHTS["pair_weight"] * np.mean(of_pairs) if of_pairs else 0.0
        total += WEIGHTS["batch_weight"] * np.mean(of_batch) if of_batch else 0.0
    return total / len(queries)


def rows(queries, candidates, keys, margins):
    given = keys[B:].reshape(B, M)
    return (
        {
            "embeddings": tf.constant(queries),
            "positive_keys": tf.constant(keys[:B, None], tf.int64),
            "given_key": tf.constant(given, tf.int64),
            "given_margin": tf.constant(margins, tf.float32),
        },
        {"embeddings": tf.constant(candidates), "keys": tf.constant(keys, tf.int64)},
    )


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_given_negatives(temperature):
    found = inputs()
    task = MarginTask(temperature=temperature, pair_weight=0.7)
    np.testing.assert_allclose(task(*rows(*found)), reference(*found, temperature), rtol=1e-6)


def test_a_negative_without_a_margin_teaches_nothing():
    queries, candidates, keys, margins = inputs()
    margins[0, 1] = margins[2] = np.nan
    given = queries, candidates, keys, margins
    task = MarginTask(pair_weight=0.7)
    np.testing.assert_allclose(task(*rows(*given)), reference(*given, 1.0), rtol=1e-6)


@pytest.fixture(scope="module")
def teacher():
    text = TextConfig(8, 12, query_fill="[MASK]")
    return Matcher.from_backbone(
        tiny.BERT, kind="late_interaction", embedding_dim=4, tokenizer=tiny.tokenizer(), text=text,
        seed=3,
    )  # fmt: skip


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_both_teachers(teacher, chunk_size):
    """The scores of the whole batch are those that the teacher gives to pairs of texts."""
    queries, candidates, keys, margins = inputs()
    texts = tiny.document_texts()[: B + B * M]
    texts[-1] = texts[B]
    texts[B + M] = ""
    questions = ["red apple", "cat", "north sea lake", "one two"]
    batch = {
        "query": tf.constant(questions),
        "document_title": tf.constant([""] * B), "document_text": tf.constant(texts[:B]),
        "negative_title": tf.constant([[""] * M] * B),
        "negative_text": tf.reshape(tf.constant(texts[B:]), (B, M)),
        "negative_key": tf.constant(keys[B:].reshape(B, M)),
        "negative_margin": tf.constant(margins, tf.float32),
    }  # fmt: skip
    task = MarginTask(teacher, 0.5, **WEIGHTS)
    known = task.describe(task.prepare(batch, replicas=1), chunk_size=chunk_size)
    student = rows(queries, candidates, keys, margins)
    loss = task({**student[0], **known[0]}, {**student[1], **known[1]})
    pairs = [(question, text) for question in questions for text in texts]
    scores = 8 * teacher.score(pairs).reshape(B, -1)  # the sum over a query's eight vectors
    expected = reference(queries, candidates, keys, margins, 0.5, scores)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert abs(expected - reference(queries, candidates, keys, margins, 0.5)) > 0.01


def test_blocks_of_queries_have_the_mean_of_all():
    queries, candidates, keys, margins = inputs()
    of_queries, of_candidates = rows(queries, candidates, keys, margins)
    task = MarginTask(pair_weight=0.7)
    parts = []
    for i in range(B):  # the block's own positive comes first
        order = [i, *(j for j in range(len(keys)) if j != i)]
        parts.append(
            task(
                {name: x[i : i + 1] for name, x in of_queries.items()},
                {name: tf.gather(x, order) for name, x in of_candidates.items()},
            )
        )
    np.testing.assert_allclose(np.mean(parts), task(of_queries, of_candidates), rtol=1e-6)


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="`teacher` must be a matcher of late_interaction"):
        MarginTask(Matcher.from_backbone(tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer()))
    with pytest.raises(ConfigError, match=r"`pair_weight` must be at least 0\. Received: -1"):
        MarginTask(pair_weight=-1.0)
