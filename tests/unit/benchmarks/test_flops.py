"""Floating point operations of known networks."""

import importlib
import sys

import keras
import pytest
import tensorflow as tf
import tiny
from benchmark_script import BENCHMARKS

from tfde.config.model import TextConfig
from tfde.matching.matcher import Matcher
from tfde.towers.pair_steps import tokens_of


@pytest.fixture(scope="module")
def count_flops():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("flops").count_flops
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_a_product_counts_twice_its_size(count_flops):
    layer = keras.layers.Dense(7, use_bias=False)
    inputs = keras.Input((5,), name="x")
    model = keras.Model({"x": inputs}, layer(inputs))
    assert count_flops(model, {"x": tf.ones((3, 5))}) == 2 * 3 * 5 * 7


def test_a_batched_product_too(count_flops):
    found = count_flops(
        lambda x: tf.matmul(x["a"], x["b"], transpose_b=True),
        {"a": tf.ones((4, 3, 5)), "b": tf.ones((4, 2, 5))},
    )
    assert found == 2 * 4 * 3 * 5 * 2


def test_an_encoder_costs_its_products_and_some_more(count_flops):
    model = Matcher.from_backbone(
        tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer(), seed=1, text=TextConfig(16, 16)
    )
    texts = tf.constant(["red " * 10])
    inputs = model.prepare(texts, tf.constant([""]), texts)
    tokens, hidden, inner, layers = 12, 8, 12, 2
    products = layers * 2 * tokens * (4 * hidden**2 + 2 * hidden * inner)
    found = count_flops(model.networks.encoders["first"], tokens_of("first", inputs))
    assert products < found < 3 * products
