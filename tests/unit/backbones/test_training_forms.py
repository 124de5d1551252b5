"""The forms for training against those for inference, whose gradients TensorFlow derives."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tfde.backbones.attention import attention, mask_bias
from tfde.backbones.backbone import build_backbone
from tfde.backbones.functional import activate, layer_norm, rms_norm
from tfde.backbones.seeded_layer import SeededLayer
from tfde.backbones.token_layout import TokenLayout
from tfde.config.backbones import BertConfig, T5Config

MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 1, 1], [0] * 7])
CONFIGS = {
    "bert": BertConfig(31, 2, 2, 8, 12, 16, dropout=0.0),
    "relative": BertConfig(31, 2, 2, 8, 12, 16, dropout=0.0, relative_buckets=8),
    "gated": T5Config(31, 2, 2, 8, 12, 6, dropout=0.0),
    "relu": T5Config(31, 2, 2, 8, 12, 6, dropout=0.0, gated=False, activation="relu"),
}


def numbers(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32)


def value_and_gradients(function, *inputs):
    upstream = None
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    upstream = numbers(*value.shape, seed=7)
    return [value, *tape.gradient(value, inputs, tf.cast(upstream, value.dtype))]


def assert_near(got, expected, tolerance=2e-6):
    for one, other in zip(got, expected, strict=True):
        one, other = (np.asarray(tf.convert_to_tensor(x), np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance * max(1.0, np.abs(other).max()))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_gradient_of_a_backbone(name):
    backbone = build_backbone(CONFIGS[name], seed=3)
    token_ids = np.random.default_rng(1).integers(1, 31, MASK.shape)
    upstream = numbers(*MASK.shape, 8) * MASK[:, :, None]
    layers = (backbone.token_embedder, backbone.encoder)
    weights = [weight.value for layer in layers for weight in layer.trainable_weights]

    def gradients(training):
        with tf.GradientTape() as tape:
            x = backbone.token_embedder(token_ids, training=training)
            x = backbone.encoder(x, MASK, training=training)
            loss = tf.reduce_sum(x * upstream)
        found = tape.gradient(loss, weights, unconnected_gradients="zero")
        assert any(np.abs(np.asarray(tf.convert_to_tensor(g))).max() > 0.1 for g in found)
        return [loss, *found]

    assert_near(gradients(True), gradients(False), 1e-5)


@pytest.mark.parametrize("tokens", [6, 200])  # few and many have forms of their own
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms(dtype, tokens):
    x = tf.cast(3 * numbers(tokens, 8) + 2, dtype)
    gamma, beta = numbers(8, seed=1), numbers(8, seed=2)
    # 8 bits of mantissa, some steps; the gradients of gamma and beta are sums over the tokens.
    tolerance = 2e-6 if dtype == "float32" else 0.02

    for norm, inputs in ((layer_norm, (x, gamma, beta)), (rms_norm, (x, gamma))):
        forms = [
            value_and_gradients(partial(norm, epsilon=1e-5, training=training), *inputs)
            for training in (True, False)
        ]
        assert forms[0][0].dtype == dtype
        assert_near(*forms, tolerance)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations(name):
    x = 3 * numbers(50, 4)
    forms = [
        value_and_gradients(lambda x, t=training: activate(name, x, training=t), x)
        for training in (True, False)
    ]
    assert_near(*forms)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_attention(dropped, per_head):
    """Against the composition of TensorFlow's ops, dropout and the bias's gradient included."""
    inputs = [numbers(4, 2, 7, 3, seed=seed) for seed in range(3)]
    inputs.append(numbers(1, 2, 7, 7, seed=4) if per_head else numbers(4, 1, 1, 7, seed=4))
    mask = mask_bias(MASK)
    keep = tf.constant(np.random.default_rng(0).random((4, 2, 7, 7)) > 0.4) if dropped else None

    def ours(query, key, value, bias):
        return attention(query, key, value, bias + mask, training=True, dropout=0.4, keep=keep)

    def composed(query, key, value, bias):
        scores = tf.matmul(query, key, transpose_b=True) + (bias + mask)
        weights = tf.nn.softmax(scores)
        if keep is not None:
            weights = weights * tf.cast(keep, tf.float32) / 0.6
        return tf.matmul(weights, value)

    assert_near(value_and_gradients(ours, *inputs), value_and_gradients(composed, *inputs))


def test_layout_there_and_back():
    layout = TokenLayout(MASK, 2)
    batch = numbers(*MASK.shape, 6)
    kept = MASK.copy()
    tokens, gradient = value_and_gradients(layout.pack, batch)
    kept[0, 0] = 1
    np.testing.assert_array_equal(tokens, batch.numpy()[kept.astype(bool)])
    np.testing.assert_array_equal(gradient.numpy()[kept == 0], 0.0)
    padded = layout.unpack(tokens)
    np.testing.assert_array_equal(padded, batch * kept[:, :, None])


def test_heads_there_and_back():
    layout = TokenLayout(MASK, 2)
    count = int(MASK.sum())
    qkv = numbers(count, 3 * 2 * 5)
    query, key, value = layout.split_heads(qkv)
    text, place = np.argwhere(MASK)[4 + 3]
    expected = qkv.numpy()[7].reshape(3, 2, 5)
    for got, one in zip((query, key, value), expected, strict=True):
        np.testing.assert_array_equal(got[text, :, place], one)
    merged = layout.merge_heads(value)
    np.testing.assert_array_equal(merged, qkv[:, 20:])


def test_a_batch_of_padding_alone():
    backbone = build_backbone(CONFIGS["bert"], seed=3)
    token_ids = np.zeros((2, 3), np.int32)
    output = backbone.encoder(backbone.token_embedder(token_ids), token_ids)
    assert np.isfinite(output.numpy()).all()
    empty = backbone.encoder(backbone.token_embedder(token_ids[:0]), token_ids[:0])
    assert empty.shape == (0, 3, 8)


def test_dropout_keeps_the_mean_and_its_share():
    layer = SeededLayer(dropout=0.1, seed=5)
    x = tf.ones((999, 333))
    one, two = layer._drop(x, True).numpy(), layer._drop(x, True).numpy()
    share = 1 - 26 / 256  # the rate in 256ths
    for got in (one, two):
        # Five standard deviations of a mean of 332,667 draws.
        assert abs((got > 0).mean() - share) < 5 * (share * (1 - share) / got.size) ** 0.5
        assert np.unique(got) == pytest.approx([0.0, 1 / share])
    assert 0.1 < ((one > 0) != (two > 0)).mean() < 0.25  # drawn anew
    assert layer._drop(x, False) is x
    again = SeededLayer(dropout=0.1, seed=5)
    np.testing.assert_array_equal(again._drop(x, True), one)


@pytest.mark.parametrize("name", CONFIGS)
def test_states_make_the_attention_weights(name):
    """The queries and keys handed out, with the bias, give what the layer attends by."""
    backbone = build_backbone(CONFIGS[name], seed=3)
    token_ids = np.random.default_rng(1).integers(1, 31, MASK.shape)
    x = backbone.token_embedder(token_ids)
    states = backbone.encoder(x, MASK, return_states=True)
    np.testing.assert_array_equal(states["sequence_output"], backbone.encoder(x, MASK))
    assert len(states["queries"]) == len(states["keys"]) == len(states["hidden_states"]) == 2
    scores = tf.matmul(states["queries"][1], states["keys"][1], transpose_b=True)
    weights = tf.nn.softmax(scores + states["bias"])
    assert weights.shape == (4, 2, 7, 7)
    np.testing.assert_allclose(weights[0, :, :, 5:], 0.0, atol=1e-12)
    real = states["hidden_states"][1].numpy()[MASK == 0]
    np.testing.assert_array_equal(real[1:], 0.0)


def test_where_there_is_a_gpu_no_norm_is_written_as_a_cpu_alone_can_run_it(monkeypatch):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in ((None, 8), (8,), (8,))]

    def ops():
        norm = tf.function(partial(layer_norm, epsilon=1e-12, training=False), specs)
        graph = norm.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        return {node.op for node in nodes}

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert "FusedBatchNormV3" in ops()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"{kind}:0"])
    assert "FusedBatchNormV3" not in ops()
