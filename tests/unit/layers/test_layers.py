"""Pooling, projection and unit norm: values worked out by hand, and the Keras contract of each."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfde.config.model import DenseConfig
from tfde.errors import ConfigError
from tfde.layers.pooling import Pooling
from tfde.layers.projection import Projection, UnitNorm


@pytest.fixture(params=["float32", "mixed_bfloat16"])
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


def tower(*layers):
    x = keras.Input((None, 2), name="x")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    y = layers[0](x, mask)
    for layer in layers[1:]:
        y = layer(y)
    return keras.Model([x, mask], y)


X = np.array([[[1, 2], [3, 4], [50, 60]], [[5, 6], [7, 8], [9, 10]], [[1, 1], [2, 2], [3, 3]]])
MASK = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], "int32")


def test_mean_is_over_real_tokens_and_zero_without_any():
    pooled = Pooling(("mean",))(X.astype("float32"), MASK)
    np.testing.assert_array_equal(pooled, [[2, 3], [5, 6], [0, 0]])


def test_mean_ignores_even_nan_at_padding():
    x = X.astype("float32")
    x[0, 2] = np.nan
    np.testing.assert_array_equal(Pooling()(x, MASK)[0], [2, 3])


def test_first_is_the_first_token():
    pooled = Pooling(("first",))(X.astype("float32"), MASK)
    np.testing.assert_array_equal(pooled, [[1, 2], [5, 6], [1, 1]])


def test_mean_of_bfloat16_is_computed_in_float32():
    x = np.ones((1, 300, 2), "float32")
    pooled = Pooling()(tf.cast(x, tf.bfloat16), np.ones((1, 300), "int32"))
    np.testing.assert_array_equal(pooled, [[1, 1]])  # 300 is not a bfloat16


def test_unit_norm_by_hand_and_at_zero():
    x = tf.constant([[3.0, 4.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = UnitNorm()(x)
    np.testing.assert_allclose(y, [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert np.isfinite(tape.gradient(y, x)).all()


def test_projection_has_no_bias_unless_asked():
    layer = Projection([DenseConfig(5)])
    layer.build((None, 3))
    assert layer.count_params() == 15
    biased = Projection([DenseConfig(5, True)])
    biased.build((None, 3))
    assert biased.count_params() == 20
    biased.set_weights([np.ones((3, 5)), np.arange(5.0)])
    np.testing.assert_array_equal(biased(np.ones((1, 3), "float32")), [[3, 4, 5, 6, 7]])


def test_projection_starts_with_variance_scaling():
    """Scale 1, fan in: variance 1/H, cut at two deviations of the uncut normal."""
    layer = Projection([DenseConfig(400)], seed=1)
    layer.build((None, 400))
    kernel = layer.kernel.numpy()
    assert abs(kernel.std() * np.sqrt(400) - 1) < 0.02
    assert abs(kernel).max() * np.sqrt(400) < 2 / 0.8796
    again = Projection([DenseConfig(400)], seed=1)
    again.build((None, 400))
    np.testing.assert_array_equal(again.kernel.numpy(), kernel)


def test_output_is_float32_under_every_policy(policy):
    model = tower(Pooling(("mean",)), Projection([DenseConfig(4, True)]), UnitNorm())
    assert model.output.dtype == "float32"
    assert {v.dtype for v in model.weights} == {"float32"}
    y = model([X.astype("float32"), MASK])
    assert y.dtype == tf.float32
    np.testing.assert_allclose(np.linalg.norm(y[:2], axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "first"])
def test_save_reload_and_another_batch_size(tmp_path, mode):
    model = tower(
        Pooling((mode,)),
        Projection([DenseConfig(4, True), DenseConfig(3)], seed=3),
        UnitNorm(epsilon=1e-9),
    )
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = X.astype("float32")
    expected = model([x, MASK]).numpy()
    np.testing.assert_array_equal(again([x, MASK]), expected)
    np.testing.assert_allclose(again([x[:1, :2], MASK[:1, :2]]), expected[:1], rtol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        Pooling(("first",)),
        Projection([DenseConfig(3, True, "tanh")], seed=4),
        UnitNorm(epsilon=1e-7),
    ],
)
def test_config_round_trip(layer):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()


def test_every_pooling_by_hand():
    """Two real tokens, (1, 2) and (3, 4); then one, (5, 6); then none."""
    x = X.astype("float32")
    root = np.sqrt(2)
    expected = {
        "first": [[1, 2], [5, 6], [1, 1]],
        "max": [[3, 4], [5, 6], [0, 0]],
        "mean": [[2, 3], [5, 6], [0, 0]],
        "mean_sqrt_length": [[4 / root, 6 / root], [5, 6], [0, 0]],
        "weighted_mean": [[7 / 3, 10 / 3], [5, 6], [0, 0]],
        "last": [[3, 4], [5, 6], [0, 0]],
    }
    for mode, rows in expected.items():
        np.testing.assert_allclose(Pooling((mode,))(x, MASK), rows, rtol=1e-6, err_msg=mode)
    both = Pooling(("max", "first"))(x, MASK)
    np.testing.assert_array_equal(both, np.hstack([expected["max"], expected["first"]]))


def test_skipped_tokens_do_not_count():
    x = X.astype("float32")
    modes = ("first", "max", "mean", "last")
    pooled = Pooling(modes, skipped_tokens=1)(x, np.ones((3, 3), "int32"))
    np.testing.assert_array_equal(pooled[0], [3, 4, 50, 60, 26.5, 32, 50, 60])
    # Only the first row has a real token after the first.
    pooled = Pooling(("mean",), skipped_tokens=1)(x, MASK)
    np.testing.assert_array_equal(pooled, [[3, 4], [0, 0], [0, 0]])


def test_projection_steps_by_hand():
    layer = Projection([DenseConfig(2, True, "relu"), DenseConfig(1)])
    layer.build((None, 2))
    layer.set_weights([np.eye(2), np.array([1.0, -5.0]), np.array([[2.0], [3.0]])])
    np.testing.assert_array_equal(layer(np.array([[1.0, 2.0]], "float32")), [[4]])


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`modes` must be a sequence of first, .*='max'"):
        Pooling("max")
    with pytest.raises(ValueError, match=r"Received: modes=\('nearest',\)"):
        Pooling(("nearest",))
    with pytest.raises(ValueError, match="`steps` must hold at least one layer"):
        Projection([])
    with pytest.raises(ConfigError, match=r"`dim` must be at least 1\. Received: 0"):
        DenseConfig(0)
    with pytest.raises(ConfigError, match=r"`activation` must be one of identity, tanh.* 'step'"):
        DenseConfig(3, activation="step")
