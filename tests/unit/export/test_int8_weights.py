"""Matrices in 8 bits: what is stored, what is computed, and by a process without tfde."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.cli.main import main
from tfde.towers.saved_models import Int8Weight, QueryEncoder, save_encoder

TEXTS = ["red apple", "", "cat dog bird fish horse cow " * 5, "zzz é"]
ELSEWHERE = """
import sys
import numpy as np, tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
texts = tf.constant(sys.argv[3:])
np.save(sys.argv[2], loaded.signatures["serving_default"](text=texts)["embeddings"].numpy())
assert "tfde" not in sys.modules and "keras_hub" not in sys.modules
"""


def wide(config):
    sizes = {"hidden_dim": 128, "intermediate_dim": 256}
    return dataclasses.replace(config, **sizes)


@pytest.mark.parametrize("by_row", [False, True])
def test_each_entry_is_within_half_a_step(by_row):
    value = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)
    value[3], value[:, 5] = 0.0, 0.0
    got = Int8Weight(value, "float32", by_row=by_row).read().numpy()
    step = np.abs(value).max(axis=1 if by_row else 0, keepdims=True) / 127
    assert (np.abs(got - value) <= step / 2 + 1e-7).all()
    assert len(np.unique(got)) > 200


@pytest.mark.parametrize("config", [tiny.BERT, tiny.T5])
def test_saved_models(tmp_path, config):
    model = tiny.dual_encoder(wide(config), embedding_dim=5)
    sizes = []
    for name, int8_weights in (("float32", False), ("int8", True)):
        encoder = QueryEncoder(model.query_tower, model.preprocessor, int8_weights=int8_weights)
        save_encoder(encoder, tmp_path / name)
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        sizes.append(sum(path.stat().st_size for path in files))
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "int8"), str(tmp_path / "o.npy")]
    subprocess.run([*command, *TEXTS], check=True)
    found, expected = np.load(tmp_path / "o.npy"), model.encode_queries(TEXTS)
    assert (np.sum(found * expected, 1) > 0.99).all()
    assert not np.allclose(found, expected, atol=1e-5)
    matrices = 4 * sum(np.prod(w.shape) for w in model.query_tower.weights if len(w.shape) == 2)
    assert sizes[0] - sizes[1] > 0.65 * matrices


def test_two_models_in_one_process_keep_their_own_weights(tmp_path):
    expected = []
    for name in "ab":
        model = tiny.dual_encoder(wide(tiny.BERT), embedding_dim=5)
        weight = model.query_tower.get_layer("encoder").transformer_layer_0.output_kernel
        weight.assign(np.random.default_rng(ord(name)).normal(0, 0.5, weight.shape))
        encoder = QueryEncoder(model.query_tower, model.preprocessor, int8_weights=True)
        save_encoder(encoder, tmp_path / name)
        expected.append(model.encode_queries(TEXTS))
    loaded = [tf.saved_model.load(str(tmp_path / name)) for name in "ab"]
    for one, embeddings in zip(loaded, expected, strict=True):
        found = one.signatures["serving_default"](text=tf.constant(TEXTS))["embeddings"]
        assert (np.sum(found * embeddings, 1) > 0.98).all()
    assert np.sum(expected[0] * expected[1], 1).min() < 0.97


def test_a_bundle_is_exported_and_verified(tmp_path, capsys):
    tiny.dual_encoder(wide(tiny.BERT), embedding_dim=5).save_to_preset(tmp_path / "model")
    options = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "bundle")]
    assert main(["export", *options, "--precision", "int8"]) == 0
    assert main(["verify", str(tmp_path / "bundle")]) == 0
