"""What holds for every backbone: padding, dtypes, seeds, copies, saving, XLA."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfde.backbones.backbone import build_backbone, copy_backbone
from tfde.backbones.bert import BertEncoder
from tfde.backbones.seeded_layer import SeededLayer
from tfde.config.backbones import BagOfWordsConfig, BertConfig, T5Config
from tfde.errors import ConfigError

T5 = T5Config(31, 2, 2, 8, 12, 6, dropout=0.5)
BERT = BertConfig(31, 2, 2, 8, 12, 16, dropout=0.5)
BAG = BagOfWordsConfig(31, 6, 8, dropout=0.5)
CONFIGS = pytest.mark.parametrize("config", [T5, BERT, BAG], ids=["t5", "bert", "bag"])

TOKEN_IDS = np.random.default_rng(0).integers(0, 31, (3, 9)).astype("int32")
MASK = (np.arange(9) < np.array([[9], [4], [1]])).astype("int32")


@pytest.fixture
def mixed_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


def run(backbone, token_ids, mask, training=False):
    x = backbone.token_embedder(token_ids, training=training)
    return backbone.encoder(x, mask, training=training)


def weights(backbone):
    return [
        w.numpy() for layer in (backbone.token_embedder, backbone.encoder) for w in layer.weights
    ]


def model_of(backbone):
    token_ids = keras.Input((None,), dtype="int32")
    mask = keras.Input((None,), dtype="int32")
    x = backbone.encoder(backbone.token_embedder(token_ids), mask)
    return keras.Model([token_ids, mask], x)


@CONFIGS
def test_padding_changes_nothing(config):
    """Masked = removed: row 1 cut to its 4 tokens, alone; and other ids at the padding."""
    backbone = build_backbone(config, seed=1)
    full = run(backbone, TOKEN_IDS, MASK).numpy()
    assert full.shape == (3, 9, 8)
    cut = run(backbone, TOKEN_IDS[1:2, :4], np.ones((1, 4), "int32")).numpy()
    np.testing.assert_allclose(full[1, :4], cut[0], atol=1e-6)
    other = np.where(MASK == 1, TOKEN_IDS, 7).astype("int32")
    real = MASK.astype(bool)
    np.testing.assert_allclose(run(backbone, other, MASK).numpy()[real], full[real], atol=1e-6)
    assert not np.allclose(run(backbone, other, np.ones_like(MASK)).numpy()[real], full[real])


@CONFIGS
def test_rows_without_tokens_and_empty_batches(config):
    backbone = build_backbone(config, seed=1)
    mask = MASK * np.array([[1], [1], [0]], "int32")
    with tf.GradientTape() as tape:
        x = run(backbone, TOKEN_IDS, mask)
        loss = tf.reduce_sum(tf.square(x))
    assert np.isfinite(x).all()
    variables = backbone.token_embedder.trainable_variables + backbone.encoder.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in variables])
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in gradients)
    assert run(backbone, TOKEN_IDS[:0], MASK[:0]).shape == (0, 9, 8)


def test_bag_of_words_by_hand():
    """tanh(tanh(mean E W0 + b0) W1 + b1), the same at every position."""
    backbone = build_backbone(BAG, seed=2)
    table, w0, b0, w1, b1 = (w.astype("float64") for w in weights(backbone))
    mean = np.stack([table[TOKEN_IDS[i, : MASK[i].sum()]].mean(0) for i in range(3)])
    expected = np.tanh(np.tanh(mean @ w0 + b0) @ w1 + b1)
    got = run(backbone, TOKEN_IDS, MASK).numpy()
    np.testing.assert_allclose(got, np.repeat(expected[:, None], 9, 1), atol=1e-6)


def test_parameter_counts_follow_from_the_sizes():
    def count(config):
        backbone = build_backbone(config)
        return backbone.token_embedder.count_params(), backbone.encoder.count_params()

    assert count(T5) == (31 * 8, 2 * (4 * 8 * 12 + 3 * 8 * 12 + 2 * 8) + 32 * 2 + 8)
    attention, feed_forward = 4 * (8 * 8 + 8), 2 * 8 * 12 + 12 + 8
    assert count(BERT) == ((31 + 16 + 2) * 8 + 2 * 8, 2 * (attention + feed_forward + 4 * 8))
    assert count(BAG) == (31 * 6, 6 * 8 + 8 + 8 * 8 + 8)


@CONFIGS
def test_seed_decides_the_weights(config):
    first, second = build_backbone(config, seed=5), build_backbone(config, seed=5)
    other = build_backbone(config, seed=6)
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(weights(first), weights(other), strict=True))


def test_initial_deviations():
    """Raffel et al.'s: query (H d)^-1/2, key and value H^-1/2, output (A d)^-1/2, table 1."""
    config = T5Config(500, 1, 8, 128, 256, 16)
    backbone = build_backbone(config, seed=0)
    layer = backbone.encoder.transformer_layers[0]
    query, key, value = np.split(layer.qkv_kernel.numpy(), 3, axis=1)
    for array, deviation in (
        (query, (128 * 16) ** -0.5),
        (key, 128**-0.5),
        (value, 128**-0.5),
        (layer.intermediate_kernel.numpy(), 128**-0.5),
        (layer.output_kernel.numpy(), 256**-0.5),
        (backbone.token_embedder.token_table.numpy(), 1.0),
    ):
        assert abs(array.std() / deviation - 1) < 0.05
    assert not np.allclose(key, value)


@CONFIGS
def test_copies_are_equal_and_apart(config):
    backbone = build_backbone(config, seed=1)
    copy = copy_backbone(backbone, name_prefix="document_")
    assert copy.encoder.name == "document_encoder"
    assert copy.token_embedder.name == "document_token_embedder"
    expected = run(backbone, TOKEN_IDS, MASK).numpy()
    np.testing.assert_array_equal(run(copy, TOKEN_IDS, MASK), expected)
    for weight in copy.encoder.weights + copy.token_embedder.weights:
        weight.assign(weight + 1.0)
    np.testing.assert_array_equal(run(backbone, TOKEN_IDS, MASK), expected)


@CONFIGS
def test_save_reload_and_another_shape(config, tmp_path):
    model = model_of(build_backbone(config, seed=1))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    expected = model([TOKEN_IDS, MASK]).numpy()
    np.testing.assert_array_equal(again([TOKEN_IDS, MASK]), expected)
    smaller = again([TOKEN_IDS[1:2, :4], MASK[1:2, :4]])
    np.testing.assert_allclose(smaller[0], expected[1, :4], atol=1e-6)
    for layer, loaded in zip(model.layers, again.layers, strict=True):
        assert layer.get_config() == loaded.get_config()


@CONFIGS
def test_dropout_is_random_in_training_only_and_continues_from_a_checkpoint(config, tmp_path):
    model = model_of(build_backbone(config, seed=1))
    inputs = [TOKEN_IDS, MASK]
    still = model(inputs).numpy()
    np.testing.assert_array_equal(model(inputs), still)
    first, second = (model(inputs, training=True).numpy() for _ in range(2))
    assert not np.allclose(first, still)
    assert not np.allclose(first, second)
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    step = tf.function(lambda: model(inputs, training=True))
    unbroken = [step().numpy() for _ in range(2)]
    for layer in model.layers:
        layer.set_weights([w + 1 for w in layer.get_weights()])
    checkpoint.restore(path)
    for expected in unbroken:
        np.testing.assert_allclose(step(), expected, atol=1e-6)


@CONFIGS
def test_xla_and_fixed_shapes(config):
    backbone = build_backbone(config, seed=1)
    compiled = tf.function(
        lambda token_ids, mask: run(backbone, token_ids, mask),
        jit_compile=True,
        input_signature=[tf.TensorSpec((3, 9), tf.int32)] * 2,
    )
    np.testing.assert_allclose(compiled(TOKEN_IDS, MASK), run(backbone, TOKEN_IDS, MASK), atol=1e-5)


@CONFIGS
def test_mixed_precision_keeps_float32_weights(config, mixed_bfloat16):
    backbone = build_backbone(config, seed=1)
    assert {w.dtype for w in weights(backbone)} == {np.dtype("float32")}
    output = run(backbone, TOKEN_IDS, MASK)
    assert output.dtype == tf.bfloat16
    keras.config.set_dtype_policy("float32")
    exact = run(copy_of_weights(config, backbone), TOKEN_IDS, MASK).numpy()
    real = np.array(MASK).astype(bool)
    got, exact = tf.cast(output, tf.float32).numpy()[real], exact[real]
    cosine = (got * exact).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(exact, axis=-1)
    assert cosine.min() > 0.999


def copy_of_weights(config, backbone):
    copy = build_backbone(config)
    copy.token_embedder.set_weights(backbone.token_embedder.get_weights())
    copy.encoder.set_weights(backbone.encoder.get_weights())
    return copy


@CONFIGS
def test_fit_lowers_the_loss(config):
    model = model_of(build_backbone(dataclasses.replace(config, dropout=0.0), seed=1))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    target = np.tile(np.linspace(-1, 1, 8, dtype="float32"), (3, 9, 1))
    history = model.fit([TOKEN_IDS, MASK], target, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_layers_can_be_reached():
    for config in (T5, BERT):
        encoder = build_backbone(config).encoder
        names = [layer.name for layer in encoder.transformer_layers]
        assert names == ["transformer_layer_0", "transformer_layer_1"]


def test_bad_sizes():
    with pytest.raises(ValueError, match=r"`activation` must be one of gelu, .*'swish'"):
        BertEncoder(1, 8, num_heads=2, intermediate_dim=4, activation="swish")
    with pytest.raises(ConfigError, match=r"`hidden_dim` must be a multiple of .*\(3\).* 8"):
        BertConfig(hidden_dim=8, num_heads=3)
    too_long = np.zeros((1, 17), "int32")
    with pytest.raises(ValueError, match=r"`max_sequence_length` positions \(16\). Received: L=17"):
        build_backbone(BERT).token_embedder(too_long)


@pytest.mark.parametrize("rate", [10, 1.0, -0.1])
@pytest.mark.parametrize("config", [T5Config, BertConfig, BagOfWordsConfig])
def test_impossible_rates_of_dropout(config, rate):
    with pytest.raises(ConfigError, match=r"`dropout` must be in \[0, 1\)\. Received:"):
        config(dropout=rate)


def test_nearly_everything_may_be_dropped():
    layer = SeededLayer(seed=1, dropout=0.999)
    assert layer.rounded_dropout == 255 / 256


def test_a_row_of_padding_is_a_number_in_float16():
    """The bias of padding is more than float16 holds, whose infinities have no softmax."""
    encoder = BertEncoder(1, 8, num_heads=2, intermediate_dim=8, dtype="float16")
    mask = tf.constant([[0, 0, 0, 0], [1, 1, 0, 0]])
    rows = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 8)), tf.float16)
    assert np.isfinite(encoder(rows, mask).numpy()).all()
