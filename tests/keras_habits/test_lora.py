"""Adapters, as a user of Keras or PEFT would ask for them."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.backbones.lora import matrices_of
from tfde.config.lora import LoraConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.errors import ConfigError
from tfde.towers.average import average_models
from tfde.training import callbacks
from tfde.training.run import train

BERT = dataclasses.replace(tiny.BERT, num_layers=1)
T5 = dataclasses.replace(tiny.T5, num_layers=1)
TEXTS = ["red apple", "north two birds", "blue"]
PAIRS = [(word, f"{word} {word}") for word in tiny.WORDS[:16]]


def embeddings_of(model, side="document"):
    """What a tower says of the texts, without tracing it."""
    token_ids, padding_mask = model.preprocessor.queries(tf.constant(TEXTS))
    tower = model.query_tower if side == "query" else model.document_tower
    return tower({"token_ids": token_ids, "padding_mask": padding_mask}).numpy()


def learned(backbone=BERT, *, rank=2, alpha=None, target=("query", "value"), **options):
    """A model whose adapters have trained."""
    keras.utils.set_random_seed(3)
    model = tiny.dual_encoder(backbone, **options)
    model.enable_lora(rank, alpha=alpha, target=target)
    model.compile(keras.optimizers.Adam(0.05))
    model.fit(PAIRS, batch_size=16, epochs=3, verbose=0)
    return model


def keras_model():
    """A functional model of Keras' own Dense layers: attention of one head."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    x = keras.layers.Embedding(120, 8)(ids)
    query, key, value = (keras.layers.Dense(8, name=name)(x) for name in ("query", "key", "value"))
    x = keras.layers.Attention()([query, value, key], mask=[keras.ops.cast(mask, "bool")] * 2)
    return keras.Model({"token_ids": ids, "padding_mask": mask}, x)


def test_the_equation():
    model = learned(rank=3, alpha=12)
    layer = model.towers.query_parts.encoder.transformer_layer_0
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    weights = {w.name: keras.ops.convert_to_numpy(w) for w in layer.weights}
    expected = x @ weights["qkv_kernel"]
    for place, name in ((0, "query"), (2, "value")):
        a, b = weights[f"{name}_lora_a"], weights[f"{name}_lora_b"]
        assert a.shape == (8, 3)
        assert np.abs(b).max() > 0.01
        expected[:, 8 * place : 8 * place + 8] += 12 / 3 * x @ a @ b
    np.testing.assert_allclose(layer._product(tf.constant(x), "qkv_kernel"), expected, atol=1e-5)
    key = layer._product(tf.constant(x), "qkv_kernel")[:, 8:16]
    np.testing.assert_allclose(key, x @ weights["qkv_kernel"][:, 8:16], atol=1e-6)


def test_keras_dense_agrees():
    """The same numbers in Keras' own layer: what it computes, and its gradients."""
    model = tiny.dual_encoder(BERT)
    model.enable_lora(3, alpha=6, target="intermediate")
    layer = model.towers.query_parts.encoder.transformer_layer_0
    dense = keras.layers.Dense(12, use_bias=False)
    dense.build((None, 8))
    dense.enable_lora(3, lora_alpha=6)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(5, 8)), tf.float32)
    factors = ("intermediate_lora_a", "lora_kernel_a"), ("intermediate_lora_b", "lora_kernel_b")
    for ours, theirs in (("intermediate_kernel", "_kernel"), *factors):
        value = rng.normal(size=getattr(dense, theirs).shape)
        getattr(layer, ours).assign(value)
        getattr(dense, theirs).assign(value)
    with tf.GradientTape(persistent=True) as tape:
        found, expected = layer._product(x, "intermediate_kernel"), dense(x)
        losses = [tf.reduce_sum(y * y) for y in (found, expected)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in factors:
        found = tape.gradient(losses[0], getattr(layer, ours).value)
        expected = tape.gradient(losses[1], getattr(dense, theirs).value)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backbone", "target", "sharing"),
    [
        (BERT, "all", "sde"),
        (BERT, ("query", "value"), "ade_ste"),
        (T5, "all", "ade_fte"),
        (dataclasses.replace(T5, gated=False, activation="relu"), "all", "ade_spl"),
        (tiny.BAG_OF_WORDS, ("dense_1",), "ade"),
        (keras_model, "all", "sde"),
        (keras_model, ("query",), "ade"),
    ],
)
def test_they_learn_are_saved_and_merged(tmp_path, backbone, target, sharing):
    backbone = backbone() if callable(backbone) else backbone
    base = tiny.dual_encoder(backbone, sharing=sharing, embedding_dim=4)
    before, original = embeddings_of(base, "query"), base.fingerprint()
    base.enable_lora(2, target=target)
    np.testing.assert_array_equal(embeddings_of(base, "query"), before)
    assert base.fingerprint() != original

    weights = base.towers.named_weights()
    values = {name: keras.ops.convert_to_numpy(weight) for name, weight in weights.items()}
    base.compile(keras.optimizers.Adam(0.05))
    base.fit(PAIRS, batch_size=16, epochs=2, verbose=0)
    for name, weight in weights.items():
        moved = not np.array_equal(keras.ops.convert_to_numpy(weight), values[name])
        assert moved == ("lora" in name or name.startswith("projection")), name
    trained = embeddings_of(base, "query"), embeddings_of(base)
    assert np.abs(trained[0] - before).max() > 0.01

    base.save_to_preset(tmp_path / "model")
    loaded = tfde.DualEncoder.from_preset(tmp_path / "model")
    assert loaded.fingerprint() == base.fingerprint()
    assert {weight.shape for weight in loaded.trainable_weights} == {
        weight.shape for weight in base.trainable_weights
    }
    loaded.merge_lora()
    assert loaded.fingerprint() != base.fingerprint()
    assert not [name for name in loaded.towers.named_weights() if "lora" in name]
    loaded.save_to_preset(tmp_path / "merged")
    for model in (base, loaded, tfde.DualEncoder.from_preset(tmp_path / "merged")):
        np.testing.assert_allclose(embeddings_of(model, "query"), trained[0], atol=1e-5)
        np.testing.assert_allclose(embeddings_of(model), trained[1], atol=1e-5)
    frozen = sharing == "ade_fte"
    assert len(loaded.trainable_weights) == len(loaded.weights) - frozen


def test_shared_layers_have_their_adapters_once():
    for sharing, adapters in (("sde", 8), ("ade_spl", 16)):
        model = tiny.dual_encoder(tiny.BERT, sharing=sharing)
        model.enable_lora(4)
        assert len(model.trainable_weights) == adapters
        table = model.summary_of_sharing()
        assert "LoRA 4" in table
        assert table.splitlines()[-1].split()[-1] == f"{adapters * 4 * 8:,}"


def test_targets_are_names_or_expressions():
    encoder = tiny.dual_encoder(tiny.T5).towers.query_parts.encoder
    paths = list(matrices_of(encoder))
    names = ["query", "key", "value", "attention_output", "intermediate", "gate", "output"]
    assert paths == [f"transformer_layer_{i}/{name}" for i in range(2) for name in names]
    choose = [
        (("output",), ["transformer_layer_0/output", "transformer_layer_1/output"]),
        (r".*_1/(query|key)", ["transformer_layer_1/query", "transformer_layer_1/key"]),
        (r"transformer_layer_0/.*", paths[:7]),
        ("all", paths),
    ]
    for target, expected in choose:
        assert LoraConfig(target=target).choose(paths) == expected
    hub = ["layer/query_dense", "layer/feedforward_output_dense"]
    assert LoraConfig(target="query").choose(hub) == hub[:1]
    with pytest.raises(ConfigError, match=r"which has query, key, .* Received: 'querry'"):
        LoraConfig(target=("value", "querry")).choose(paths)
    with pytest.raises(ConfigError, match="a name or a regular expression"):
        LoraConfig(target="(").choose(paths)


@pytest.mark.parametrize("way", ["chunks", "xla", "mixed_bfloat16"])
def test_every_way_of_training_is_the_plain_one(way):
    backbone = dataclasses.replace(BERT, dropout=0.0)

    def trained(*, chunk_size=None, jit_compile=False, dtype=None):
        keras.utils.set_random_seed(3)
        model = tiny.dual_encoder(backbone, dtype=dtype)
        model.enable_lora(2, target="all")
        model.compile(keras.optimizers.SGD(0.5), chunk_size=chunk_size, jit_compile=jit_compile)
        model.fit(PAIRS, batch_size=8, epochs=2, verbose=0)
        return model

    plain = trained()
    options = {"chunks": {"chunk_size": 3}, "xla": {"jit_compile": True}}
    other = trained(**options.get(way, {"dtype": way}))
    tolerance = 0.05 if way == "mixed_bfloat16" else 1e-4
    found, expected = (embeddings_of(model) for model in (other, plain))
    np.testing.assert_allclose(found, expected, atol=tolerance)
    moved = np.abs(embeddings_of(plain) - embeddings_of(tiny.dual_encoder(backbone)))
    assert moved.max() > 10 * tolerance or way == "mixed_bfloat16"


def test_adapters_of_weights_in_bfloat16_are_float32():
    model = learned(dtype="bfloat16")
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    embeddings = embeddings_of(model)
    model.merge_lora()
    np.testing.assert_allclose(embeddings_of(model), embeddings, atol=0.03)


def test_what_is_exported_is_merged(tmp_path):
    model = learned()
    embeddings = model.encode_documents(TEXTS)
    index = tfde.ExactIndex.build(embeddings, ["1", "2", "3"], fingerprint=model.fingerprint())
    bundle = tfde.export_bundle(model, index, tmp_path / "bundle", scann=False)
    saved = tf.saved_model.load(str(bundle / "models" / "document_encoder" / "1"))
    texts = tf.constant(TEXTS)
    found = saved.signatures["serving_default"](text=texts, title=tf.fill((3,), ""))["embeddings"]
    np.testing.assert_allclose(found, embeddings, atol=1e-5)
    assert model.config.lora is not None  # the model itself stays as it is
    tfde.export_sentence_transformers(model, tmp_path / "theirs")
    theirs = tfde.DualEncoder.from_backbone(
        tmp_path / "theirs", text=model.preprocessor.text_config
    )
    np.testing.assert_allclose(theirs.encode_documents(TEXTS), embeddings, atol=1e-5)


def test_a_mean_is_that_of_the_merged_weights(tmp_path):
    model = learned()
    model.save_to_preset(tmp_path / "a")
    tiny.dual_encoder(BERT).save_to_preset(tmp_path / "b")
    mean = average_models([tmp_path / "a", tmp_path / "b"])
    model.merge_lora()
    kernels = [
        keras.ops.convert_to_numpy(one.towers.query_parts.encoder.transformer_layer_0.qkv_kernel)
        for one in (model, tiny.dual_encoder(BERT), mean)
    ]
    np.testing.assert_allclose(kernels[2], (kernels[0] + kernels[1]) / 2, atol=1e-6)


def test_a_tower_alone_is_saved_by_keras(tmp_path):
    model = learned()
    model.query_tower.save(tmp_path / "tower.keras")
    tower = keras.saving.load_model(tmp_path / "tower.keras")
    token_ids, padding_mask = model.preprocessor.queries(tf.constant(TEXTS))
    tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
    np.testing.assert_allclose(tower(tokens), model.query_tower(tokens), atol=1e-6)


def test_what_cannot_be_is_told():
    model = learned()
    with pytest.raises(ConfigError, match="has adapters already: `merge_lora` folds them in"):
        model.enable_lora(4)
    model.merge_lora()
    with pytest.raises(ConfigError, match="call `compile` before `fit`"):
        model.fit(PAIRS)
    with pytest.raises(ConfigError, match="`merge_lora` must be called after `enable_lora`"):
        model.merge_lora()
    with pytest.raises(ConfigError, match="`rank` must be a whole number of at least 1"):
        model.enable_lora(0)
    with pytest.raises(ConfigError, match="`alpha` must be above 0"):
        model.enable_lora(4, alpha=-1)
    with pytest.raises(ConfigError, match="which has dense_0, dense_1"):
        tiny.dual_encoder().enable_lora()
    frozen = {"token_embedder": "frozen", "encoder": "frozen", "projection": "shared"}
    with pytest.raises(ConfigError, match=r"`sharing\.encoder` must be shared or separate"):
        tiny.dual_encoder(BERT, sharing=frozen, embedding_dim=4).enable_lora()
    for part in (model, model.query_tower):
        with pytest.raises(ConfigError, match=r'`int8_weights=True`.*dtype="bfloat16"'):
            part.quantize("int8")


@pytest.fixture
def run(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data", documents=60))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    sizes = {"kind": "bag_of_words", "embedding_dim": 4, "hidden_dim": 4}
    config = ModelConfig(sizes, str(vocabulary), text=tfde.TextConfig(8, 16))
    rate = OptimizerConfig("adamw", 0.02, "constant")
    stage = functools.partial(
        StageConfig, data, steps=4, batch_size=8, optimizer=rate, checkpoint_every_steps=2
    )
    stages = {
        "adapters": stage(lora=LoraConfig(2, target="all")),
        "whole": stage(),
        "others": stage(lora=LoraConfig(3, target="dense_1")),
    }
    return TrainRun(config, stages)


class KilledError(Exception):
    """As if the process were gone."""


def stopped(run, output, monkeypatch, stage, step):
    """Trains until a step of a stage, and dies after its checkpoint."""
    write = callbacks.save_checkpoint

    def write_and_die(path, model, progress):
        write(path, model, progress)
        if (progress.stage, progress.step) == (stage, step):
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "save_checkpoint", write_and_die)
        with pytest.raises(KilledError):
            train(run, output, verbose=0)


@pytest.mark.kill
def test_a_recipe_trains_them_and_goes_on_after_a_kill(tmp_path, run, monkeypatch):
    whole = train(run, tmp_path / "unbroken", verbose=0)
    assert whole.config.lora == run.stages["others"].lora
    assert sum("lora" in name for name in whole.towers.named_weights()) == 2
    for stage in ("adapters", "others"):
        stopped(run, tmp_path / stage, monkeypatch, stage, 2)
        again = train(run, tmp_path / stage, verbose=0)
        assert again.fingerprint() == whole.fingerprint(), stage
    loaded = tfde.DualEncoder.from_preset(tmp_path / "unbroken" / "model")
    assert loaded.fingerprint() == whole.fingerprint()


def test_a_recipe_finds_faults_of_its_last_stage_first(tmp_path, run):
    bad = dataclasses.replace(run.stages["others"], lora=LoraConfig(2, target="quarry"))
    bad = dataclasses.replace(run, stages={**run.stages, "others": bad})
    with pytest.raises(ConfigError, match=r"stages\.others.*`target` must be"):
        train(bad, tmp_path / "out", verbose=0)
    assert not (tmp_path / "out" / "checkpoint.safetensors").exists()
    frozen = {"lora": LoraConfig(2), "freeze": ("encoder",)}
    stage = dataclasses.replace(run.stages["others"], **frozen)
    with pytest.raises(ConfigError, match=r"stages\.others\.freeze` must be without"):
        dataclasses.replace(run, stages={"others": stage})
    stage = dataclasses.replace(run.stages["others"], objective="masked_lm")
    with pytest.raises(ConfigError, match=r"stages\.others\.lora` must be None with"):
        dataclasses.replace(run, stages={"others": stage})
