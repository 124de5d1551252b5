"""`FusedAdamW` against Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfde.training.optimizers import FusedAdamW


def trained(optimizer, gradients, dtype="float32"):
    """Returns two weights after the steps; the second one is not decayed."""
    rng = np.random.default_rng(0)
    weights = [
        keras.Variable(rng.standard_normal((5, 3)), dtype=dtype, name="kernel"),
        keras.Variable(rng.standard_normal(3), dtype=dtype, name="bias"),
    ]
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(weights)

    @tf.function
    def step(first, second):
        optimizer.apply([first, second], weights)

    for first, second in gradients:
        step(tf.cast(first, dtype), tf.cast(second, dtype))
    found = [weight.value for weight in (*weights, *optimizer.variables)]
    return [np.asarray(tf.cast(value, tf.float32)) for value in found]


def gradients(count):
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((5, 3)), rng.standard_normal(3)) for _ in range(count)]


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ten_steps(clip_norm, dtype):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.05, 20)
    settings = {"weight_decay": 0.1, "global_clipnorm": clip_norm}
    ours = trained(FusedAdamW(schedule, **settings), gradients(10), dtype)
    theirs = trained(keras.optimizers.AdamW(schedule, **settings), gradients(10), dtype)
    # Ten steps of 0.05; 1 - 0.999^t has lost three digits, and bfloat16 has 8 bits of all.
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, atol=tolerance)


def test_rows_that_occur_twice_are_summed_before_clipping():
    rows = tf.constant([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    slices = tf.IndexedSlices(rows, tf.constant([1, 1, 4]), dense_shape=(5, 3))
    weight = keras.Variable(np.zeros((5, 3)), dtype="float32")
    optimizer = FusedAdamW(0.1, global_clipnorm=1.0)
    optimizer.build([weight])
    clipped = optimizer._clip_gradients([slices])[0].numpy()
    expected = np.zeros((5, 3))
    expected[1, 0], expected[4, 2] = 7.0, 2.0
    np.testing.assert_allclose(clipped, expected / 53**0.5, rtol=1e-6)
    optimizer.apply([slices], [weight])
    assert (weight.numpy() != 0).sum() == 2


def test_is_saved_and_loaded():
    optimizer = FusedAdamW(0.1, weight_decay=0.02, global_clipnorm=1.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, FusedAdamW)
    assert again.get_config() == optimizer.get_config()


def test_gradients_are_accumulated_as_by_keras():
    settings = {"weight_decay": 0.1, "gradient_accumulation_steps": 2}
    ours = trained(FusedAdamW(0.05, **settings), gradients(8))
    theirs = trained(keras.optimizers.AdamW(0.05, **settings), gradients(8))
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
