"""Encoders saved and loaded again: other batch sizes, XLA, half precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.towers import saved_models
from tfde.towers.saved_models import DocumentEncoder, QueryEncoder, save_encoder

TEXTS = ["red apple", "", "cat dog bird fish horse cow " * 5, "zzz é"]
TITLES = ["river", "", "lake sea", "hill"]


@pytest.mark.parametrize("backbone", [tiny.T5, tiny.BERT, tiny.BAG_OF_WORDS])
def test_encoders_equal_keras(tmp_path, backbone):
    model = tiny.dual_encoder(backbone, sharing="ade", embedding_dim=5)
    for weight in model.document_tower.trainable_weights:
        weight.assign_add(np.random.default_rng(1).normal(0, 0.1, weight.shape))
    save_encoder(QueryEncoder(model.query_tower, model.preprocessor), tmp_path / "q")
    save_encoder(DocumentEncoder(model.document_tower, model.preprocessor), tmp_path / "d")
    loaded = [tf.saved_model.load(str(tmp_path / name)) for name in "qd"]
    query, document = (model.signatures for model in loaded)
    found = query["serving_default"](text=tf.constant(TEXTS))["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)
    found = document["serving_default"](title=tf.constant(TITLES), text=tf.constant(TEXTS))
    pairs = [{"title": title, "text": text} for title, text in zip(TITLES, TEXTS, strict=True)]
    np.testing.assert_allclose(found["embeddings"], model.encode_documents(pairs), atol=1e-5)
    tokens = query["tokenize"](text=tf.constant(TEXTS))
    np.testing.assert_array_equal(
        tokens["token_ids"], model.preprocessor.queries(tf.constant(TEXTS))[0]
    )
    found = query["encode_tokens"](**tokens)["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)


@pytest.mark.parametrize("backbone", [tiny.T5, tiny.BERT])
def test_encode_tokens_compiles_at_fixed_shapes(tmp_path, backbone):
    model = tiny.dual_encoder(backbone, embedding_dim=5)
    save_encoder(QueryEncoder(model.query_tower, model.preprocessor), tmp_path / "q")
    loaded = tf.saved_model.load(str(tmp_path / "q"))
    signatures = loaded.signatures
    tokens = signatures["tokenize"](text=tf.constant(TEXTS))
    shape = tokens["token_ids"].shape
    spec = tf.TensorSpec(shape, tf.int32)

    @tf.function(jit_compile=True, input_signature=[spec, spec])
    def encode(token_ids, padding_mask):
        return signatures["encode_tokens"](token_ids=token_ids, padding_mask=padding_mask)

    found = encode(tokens["token_ids"], tokens["padding_mask"])["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)


def test_half_precision_models_give_float32(tmp_path):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = tiny.dual_encoder(tiny.T5, embedding_dim=5)
    finally:
        keras.config.set_dtype_policy(policy)
    assert model.query_tower.compute_dtype == "bfloat16"
    save_encoder(QueryEncoder(model.query_tower, model.preprocessor), tmp_path / "q")
    loaded = tf.saved_model.load(str(tmp_path / "q"))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["embeddings"]
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)


def test_tables_are_variables_and_other_weights_up_to_a_size_constants(tmp_path, monkeypatch):
    model = tiny.dual_encoder(tiny.T5, embedding_dim=5)
    expected = model.encode_queries(TEXTS)
    variables = []
    for limit in (saved_models.MAX_CONSTANT_BYTES, 0):
        monkeypatch.setattr(saved_models, "MAX_CONSTANT_BYTES", limit)
        monkeypatch.setattr(saved_models, "_LEAST_INT8_SIZE", 100)
        directory = tmp_path / str(limit)
        save_encoder(QueryEncoder(model.query_tower, model.preprocessor), directory)
        loaded = tf.saved_model.load(str(directory))
        found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["embeddings"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        variables.append([weight.name for weight in loaded.weights])
    tables, everything = variables
    assert tables == ["token_table:0"]
    assert len(everything) == len(model.query_tower.variables)


def test_nothing_of_keras_is_saved(tmp_path):
    model = tiny.dual_encoder(tiny.T5)
    save_encoder(QueryEncoder(model.query_tower, model.preprocessor), tmp_path / "q")
    assert not (tmp_path / "q" / "keras_metadata.pb").exists()
    names = {path.name for path in (tmp_path / "q").iterdir()}
    assert "saved_model.pb" in names
