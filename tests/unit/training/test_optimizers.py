import keras
import numpy as np
import pytest

from tests import tiny
from tfde.config.optimizer import OptimizerConfig
from tfde.errors import ConfigError
from tfde.matching.matcher import Matcher
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.optimizers import (
    FusedAdamW,
    LinearDecay,
    adafactor,
    adamw,
    averaged_over_steps,
    build_optimizer,
    layer_shares,
)


def test_linear_decay_by_hand():
    schedule = LinearDecay(2.0, decay_steps=10, warmup_steps=4)
    rates = [float(schedule(step)) for step in (0, 1, 3, 4, 7, 10, 99)]
    np.testing.assert_allclose(rates, [0.5, 1.0, 2.0, 2.0, 1.0, 0.0, 0.0])
    assert float(LinearDecay(1e-3, decay_steps=20_000)(10_000)) == pytest.approx(5e-4)
    constant = LinearDecay(2.0, decay_steps=None, warmup_steps=4)
    assert [float(constant(step)) for step in (1, 4, 10**9)] == [1.0, 2.0, 2.0]
    again = LinearDecay.from_config(schedule.get_config())
    assert float(again(7)) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"learning_rate": 0.0, "decay_steps": 5},
            r"`learning_rate` must be above 0\. Received: 0",
        ),
        (
            {"learning_rate": 1.0, "decay_steps": 5, "warmup_steps": 5},
            r"`warmup_steps` must be in \[0, decay_steps\)\. Received: warmup_steps=5",
        ),
    ],
)
def test_impossible_schedules(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LinearDecay(arguments.pop("learning_rate"), **arguments)


@pytest.mark.parametrize("make", [adafactor, adamw])
def test_optimizers_minimise(make):
    weight = keras.Variable(np.full((3, 2), 2.0, np.float32), name="kernel")
    optimizer = make(0.1, decay_steps=200)
    for _ in range(200):
        optimizer.apply([2 * weight.value], [weight])
    assert float(np.abs(weight.numpy()).max()) < 0.2


@pytest.mark.parametrize("epsilon", [1e-8, 1e-7])
def test_epsilon_is_the_recipes(epsilon):
    """Adam's first step on a gradient g: rate * g / (|g| + epsilon / sqrt(1 - beta2))."""
    weight = keras.Variable(np.zeros((1,), np.float32), name="kernel")
    config = OptimizerConfig("adamw", 0.1, "constant", clip_norm=None, epsilon=epsilon)
    build_optimizer(config, steps=10).apply([np.array([1e-6], np.float32)], [weight])
    expected = -0.1 * 1e-6 / (1e-6 + epsilon / np.sqrt(1 - 0.999))
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4)


def test_clipping_bounds_the_update():
    # One step of plain Adam moves every weight by the learning rate, whatever the gradient; what
    # clipping by the global norm changes is the ratio to epsilon. So look at the moments instead.
    weight = keras.Variable(np.zeros((2,), np.float32), name="kernel")
    optimizer = adamw(0.1, decay_steps=10, clip_norm=1.0)
    optimizer.apply([np.array([30.0, 40.0], np.float32)], [weight])
    moment = next(v for v in optimizer.variables if "momentum" in v.path)
    np.testing.assert_allclose(moment.numpy(), 0.1 * np.array([0.6, 0.8]), rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"clipnorm": 1.0}, {"clipvalue": 0.5}, {"global_clipnorm": 1.0}, {"amsgrad": True}]
)
def test_options_do_what_they_do_in_keras(options):
    found = []
    for kind in (FusedAdamW, keras.optimizers.AdamW):
        weights = [keras.Variable(np.ones((2, 2), np.float32), name=name) for name in ("a", "b")]
        optimizer = kind(0.1, epsilon=1.0, **options)  # so that sizes matter, not only signs
        for scale in (3.0, -40.0, 0.1):
            gradient = scale * np.array([[1.0, 2.0], [0.1, -3.0]], np.float32)
            optimizer.apply([gradient, 0.1 * gradient], weights)
        found.append([weight.numpy() for weight in weights])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_biases_and_norms_are_not_decayed():
    names = ("kernel", "output_bias", "norm_gamma", "attention_norm_scale")
    weights = [keras.Variable(np.ones((2,), np.float32), name=name) for name in names]
    optimizer = adamw(0.5, decay_steps=1000, weight_decay=0.1)
    optimizer.apply([np.zeros((2,), np.float32)] * 4, weights)
    values = {name: float(weight.numpy()[0]) for name, weight in zip(names, weights, strict=True)}
    assert values.pop("kernel") == pytest.approx(1 - 0.5 * 0.1)
    assert set(values.values()) == {1.0}


def test_rates_of_layers_and_the_way_back_by_hand():
    """A gradient of 1 moves a weight by its rate, once both decays have taken their share."""
    weights = tiny.dual_encoder(tiny.BERT).trainable_variables
    optimizer = FusedAdamW(
        0.1, weight_decay=0.5, undecayed=("bias",), layer_decay=0.5, start_decay=2.0, epsilon=0.0
    )
    optimizer.build(weights)
    starts = [weight.numpy() for weight in weights]
    for weight in weights:
        weight.assign_add(np.full(weight.shape, 3.0))
    optimizer.apply([np.ones(weight.shape, np.float32) for weight in weights], weights)
    shares = {"token_embedder": 0.25, "transformer_layer_0": 0.5, "transformer_layer_1": 1.0}
    seen = set()
    for weight, start in zip(weights, starts, strict=True):
        part = next(part for part in shares if part in weight.path)
        rate, decay = 0.1 * shares[part], 0.0 if "bias" in weight.path else 0.5
        expected = (start + 3.0) * (1 - rate * decay)
        expected -= rate * 2.0 * (expected - start) + rate
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, atol=1e-6)
        seen.add((part, decay))
    assert len(seen) == 5  # the token embedder has no bias


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_the_mean_over_steps_by_hand(name, scaled):
    weight = keras.Variable(np.ones((2, 3), np.float32), name="kernel")
    config = OptimizerConfig(name, 0.5, "constant")
    optimizer = build_optimizer(config, steps=9, ema_momentum=0.75)
    rng, mean, scale = np.random.default_rng(0), None, 1.0
    if scaled:  # as Keras wraps it in mixed_float16
        optimizer, scale = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0), 8.0
    for _ in range(5):
        optimizer.apply([rng.normal(size=(2, 3)).astype(np.float32) * scale], [weight])
        now = np.array(weight.numpy())
        mean = now if mean is None else 0.75 * mean + 0.25 * now
    with averaged_over_steps(optimizer):
        np.testing.assert_allclose(weight.numpy(), mean, rtol=1e-5)
    np.testing.assert_array_equal(weight.numpy(), now)
    assert np.abs(mean - now).max() > 0.01


def test_layers_of_real_towers():
    paths = [weight.path for weight in tiny.dual_encoder(tiny.BERT).trainable_variables]
    shares = dict(zip(paths, layer_shares(paths, 0.5), strict=True))
    assert {share for path, share in shares.items() if path.startswith("token_embedder")} == {0.25}
    assert {share for path, share in shares.items() if "layer_1/" in path} == {1.0}
    paths = [weight.path for weight in tiny.dual_encoder(tiny.T5).trainable_variables]
    shares = dict(zip(paths, layer_shares(paths, 0.5), strict=True))
    table = next(path for path in paths if "relative_table" in path)
    lowest = {share for path, share in shares.items() if "layer_0/" in path}
    assert {shares[table]} == lowest == {0.5}
    assert shares["encoder/norm_gamma"] == 1.0
    with pytest.raises(ConfigError, match="`layer_decay` must be 1 for a backbone without layers"):
        layer_shares(["encoder/table"], 0.5)


def test_layers_on_top_of_a_backbone_have_the_whole_rate():
    """A DiPair's new layers are numbered from 0 too."""
    model = Matcher.from_backbone(
        tiny.BERT, kind="dipair", top_layers=3, tokenizer=tiny.tokenizer(), seed=1
    )
    paths = [weight.path for weight in model.trainable_weights]
    shares = dict(zip(paths, layer_shares(paths, 0.5), strict=True))
    by_place = {
        place: {share for path, share in shares.items() if place in path}
        for place in ("top/", "encoder/transformer_layer_0/", "encoder/transformer_layer_1/")
    }
    assert list(by_place.values()) == [{1.0}, {0.5}, {1.0}]


@pytest.mark.parametrize("cut", [True, False])
def test_layers_of_a_model_of_ones_own(cut):
    """What embeds tokens lies below the first layer, whether or not it is a part of its own."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(len(tiny.VOCABULARY), 8, name="token_embedding")(ids)
    x = keras.layers.LayerNormalization(name="embeddings_layer_norm")(x)
    for number in range(2):
        x = keras.layers.Dense(8, name=f"transformer_layer_{number}")(x)
    if not cut:  # what reads the ids again cannot be cut off them
        x = x + keras.layers.Embedding(len(tiny.VOCABULARY), 8, name="other_embedding")(ids)
    x = keras.layers.Dense(8, name="output")(x)
    model = DualEncoder.from_backbone(keras.Model(ids, x), tokenizer=tiny.tokenizer())
    paths = [weight.path for weight in model.trainable_weights]
    shares = dict(zip(paths, layer_shares(paths, 0.5), strict=True))
    found = {
        name: {share for path, share in shares.items() if name in path}
        for name in ("embed", "layer_0/", "layer_1/", "output/")
    }
    assert list(found.values()) == [{0.25}, {0.5}, {1.0}, {1.0}]
