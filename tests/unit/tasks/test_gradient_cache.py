import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.errors import ConfigError
from tfde.tasks.gradient_cache import cached_gradients


def numbers(lengths, longest):
    """Texts of so many tokens, each token the number of its text."""
    mask = np.arange(longest) < np.array(lengths)[:, None]
    token_ids = np.where(mask, np.arange(len(lengths))[:, None], 99)
    return {
        "token_ids": tf.constant(token_ids, tf.int32),
        "padding_mask": tf.constant(mask.astype(np.int32)),
    }


def test_chunks_hold_texts_of_like_length_and_no_padding_beyond_the_longest():
    seen = []

    def embed(tokens):
        seen.append(tokens["token_ids"].numpy())
        return table.value()[tokens["token_ids"][:, 0].numpy()[0]] * tf.ones(
            [len(tokens["token_ids"]), 1]
        )

    table = tf.Variable(tf.ones([6]))
    cached_gradients(
        [(embed, numbers([2, 5, 1, 3, 5, 2], longest=8))],
        tf.reduce_sum,
        chunk_size=4,
        weights=[table],
        random_states=[],
    )
    first = [[1, 1, 1, 1, 1], [4, 4, 4, 4, 4], [3, 3, 3, 99, 99], [0, 0, 99, 99, 99]]
    second = [[5, 5], [2, 99]]
    assert [chunk.tolist() for chunk in seen] == [first, second, first, second]


def test_embeddings_come_in_the_order_of_the_texts_and_gradients_add_up():
    # e = w * (number of the text + 1), L = sum(c * e^2): dL/dw = 2 w sum(c * (number + 1)^2).
    weight = tf.Variable(3.0)
    untouched = tf.Variable([1.0, 2.0])
    c = np.array([1.0, 10.0, 100.0, 1000.0, 10_000.0], np.float32)
    given = []

    def embed(tokens):
        return weight * tf.cast(tokens["token_ids"][:, :1] + 1, tf.float32)

    def loss(embeddings, again):
        given.append(embeddings.numpy()[:, 0])
        return tf.reduce_sum(c * tf.square(embeddings[:, 0])) + 0.0 * tf.reduce_sum(again)

    tokens = numbers([1, 4, 2, 4, 3], longest=4)
    found = cached_gradients(
        [(embed, tokens), (embed, tokens)],
        loss,
        chunk_size=2,
        weights=[weight, untouched],
        random_states=[],
    )
    np.testing.assert_array_equal(given, [[3.0, 6.0, 9.0, 12.0, 15.0]])
    np.testing.assert_allclose(found[0], 6.0 * np.sum(c * np.arange(1, 6) ** 2), rtol=1e-6)
    np.testing.assert_array_equal(found[1], [0.0, 0.0])


def test_both_passes_see_the_same_random_states():
    state = tf.Variable(7)
    weight = tf.Variable(1.0)
    seen = []

    def embed(tokens):
        seen.append(int(state))
        state.assign_add(1)
        return weight * tf.ones([tf.shape(tokens["token_ids"])[0], 1])

    tokens = numbers([1] * 5, longest=1)
    cached_gradients(
        [(embed, tokens), (embed, tokens)],
        lambda queries, documents: tf.reduce_sum(queries + documents),
        chunk_size=2,
        weights=[weight],
        random_states=[state],
    )
    assert seen == [*range(7, 13), *range(7, 13)]
    assert int(state) == 13


def test_a_table_gets_its_gradient_row_by_row():
    table = tf.Variable(np.arange(12.0, dtype=np.float32).reshape(6, 2))

    def embed(tokens):
        mask = tf.cast(tokens["padding_mask"], tf.float32)[..., None]
        rows = tf.gather(table, tf.minimum(tokens["token_ids"], 5))
        return tf.reduce_sum(rows * mask, 1)

    gradient = cached_gradients(
        [(embed, numbers([2, 5, 1], longest=6))],
        tf.reduce_sum,
        chunk_size=1,
        weights=[table],
        random_states=[],
    )[0]
    assert gradient.numpy().tolist() == [[2, 2], [5, 5], [1, 1], [0, 0], [0, 0], [0, 0]]


def test_the_graph_does_not_grow_with_the_number_of_chunks():
    table = tf.Variable(tf.ones([10, 2]))

    @tf.function
    def step(token_ids, padding_mask):
        tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
        return cached_gradients(
            [(lambda tokens: tf.reduce_sum(tf.gather(table, tokens["token_ids"]), 1), tokens)],
            tf.reduce_sum,
            chunk_size=4,
            weights=[table],
            random_states=[],
        )

    def operations(rows):
        tokens = tf.ones([rows, 3], tf.int32)
        graph = step.get_concrete_function(tokens, tokens).graph
        definition = graph.as_graph_def()
        inside = [len(function.node_def) for function in definition.library.function]
        return len(definition.node) + sum(inside)

    assert operations(8) == operations(400)


def test_a_chunk_size_below_1_is_refused():
    with pytest.raises(ConfigError, match=r"`chunk_size` must be at least 1. Received: 0"):
        tiny.dual_encoder().compile(chunk_size=0)


def test_a_chunk_size_with_xla_is_refused():
    with pytest.raises(ConfigError, match=r"cuts each chunk to its longest text, which XLA cannot"):
        tiny.dual_encoder().compile(chunk_size=4, jit_compile=True)
