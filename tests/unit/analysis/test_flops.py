"""Floating point operations of known networks."""

import keras
import numpy as np
import tensorflow as tf
import tiny

from tfde.analysis.flops import count_flops
from tfde.config import TextConfig
from tfde.matching.matcher import Matcher
from tfde.matching.networks import tokens_of_side


def test_a_product_counts_twice_its_size():
    layer = keras.layers.Dense(7, use_bias=False)
    inputs = keras.Input((5,), name="x")
    model = keras.Model({"x": inputs}, layer(inputs))
    assert count_flops(model, {"x": tf.ones((3, 5))}) == 2 * 3 * 5 * 7


def test_a_batched_product_too():
    found = count_flops(
        lambda x: tf.matmul(x["a"], x["b"], transpose_b=True),
        {"a": tf.ones((4, 3, 5)), "b": tf.ones((4, 2, 5))},
    )
    assert found == 2 * 4 * 3 * 5 * 2


def test_an_encoder_costs_its_products_and_padding_nothing():
    """The matrix products of the layers, and what else there is; padding of a longer text adds little."""
    model = Matcher.from_backbone(
        tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer(), seed=1, text=TextConfig(32, 32)
    )
    encoder = model.networks.encoders["first"]

    def flops(words: int, rows: int = 1, longest: int = 0) -> int:
        texts = ["red " * words] * rows + (["red " * longest] if longest else [])
        inputs = model.prepare(
            tf.constant(texts), tf.constant([""] * len(texts)), tf.constant(texts)
        )
        return count_flops(encoder, tokens_of_side("first", inputs))

    tokens, hidden, inner, layers = 12, 8, 12, 2
    products = layers * 2 * tokens * (4 * hidden**2 + 2 * hidden * inner)
    found = flops(tokens - 2)
    assert products < found < 3 * products
    one, two = flops(10, longest=20), flops(10, rows=2, longest=20)
    assert np.isclose(two - one, flops(10), rtol=0.5)
