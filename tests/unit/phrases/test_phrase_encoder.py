"""A phrase encoder: batches, saving, export, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_phrases import DOCUMENTS, phrase_encoder

import tfde
from tfde.config.model import TextConfig
from tfde.config.phrases import PhraseConfig
from tfde.errors import ConfigError, CorruptError

QUERIES = ["red apple", "", "one two three four five six seven eight nine", "émile 中 🐈"]


def by_number(model, passages, **options):
    return dict(model.encode_passages(passages, **options))


def test_padding_and_batches_change_nothing(model):
    read = model.reader.read(DOCUMENTS)
    together = by_number(model, read)
    alone = by_number(model, read, batch_size=1)
    for number, passage in enumerate(read):
        vectors, logits = together[number]
        assert vectors.shape == (len(passage.spans), 8)
        assert logits.shape == (len(passage.spans), 2)
        np.testing.assert_allclose(vectors, alone[number].vectors, atol=1e-5)
        np.testing.assert_allclose(logits, alone[number].logits, atol=1e-5)
    assert len(together[2].vectors) == 0  # an empty text


def test_vectors_are_those_of_the_texts_tokens(model):
    (passage,) = model.reader.read(DOCUMENTS[:1])
    inputs = {
        "token_ids": tf.constant(passage.token_ids[None]),
        "padding_mask": tf.ones((1, len(passage.token_ids)), tf.int32),
    }
    whole = model(inputs)["vectors"].numpy()[0]
    own = by_number(model, [passage])[0].vectors
    np.testing.assert_allclose(own, whole[passage.first : -1], atol=1e-5)


def test_queries_too_long_are_cut(model):
    vectors = model.encode_queries(QUERIES)
    assert vectors.shape == (4, 2, 8)
    cut = model.encode_queries(["one two three four five six"])  # 8 with start and end
    np.testing.assert_allclose(vectors[2], cut[0], atol=1e-5)
    assert model.encode_queries([]).shape == (0, 2, 8)
    np.testing.assert_allclose(model.encode_queries("red apple"), vectors[0], atol=1e-5)


def test_saved_and_loaded(tmp_path):
    model = phrase_encoder(pooling="mean")
    model.save_to_preset(tmp_path / "model")
    model.save(tmp_path / "model.keras")
    expected = model.encode_queries(QUERIES)
    read = model.reader.read(DOCUMENTS[:2])
    start = tfde.PhraseEncoder.from_backbone(tmp_path / "model")  # its passage encoder, thrice
    np.testing.assert_allclose(
        by_number(start, read)[0].vectors, by_number(model, read)[0].vectors, atol=1e-6
    )
    for loaded in (
        tfde.PhraseEncoder.from_preset(tmp_path / "model"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert loaded.fingerprint() == model.fingerprint()
        np.testing.assert_allclose(loaded.encode_queries(QUERIES), expected, atol=1e-6)
        again = loaded.reader.read(DOCUMENTS[:2])
        np.testing.assert_array_equal(again[0].token_ids, read[0].token_ids)
        np.testing.assert_allclose(
            by_number(loaded, again)[0].vectors, by_number(model, read)[0].vectors, atol=1e-6
        )


def test_a_model_of_another_class_is_refused(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path)
    with pytest.raises(CorruptError, match="PhraseEncoder"):
        tfde.PhraseEncoder.from_preset(tmp_path)


def test_export_takes_strings(tmp_path, model):
    model.export(tmp_path / "saved")
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    found = serve(texts=tf.constant(QUERIES))
    expected = model.encode_queries(QUERIES)
    np.testing.assert_allclose(found["start"], expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(found["end"], expected[:, 1], atol=1e-5)


def test_weights_change_the_fingerprint(model):
    assert phrase_encoder(seed=1).fingerprint() == model.fingerprint()
    assert phrase_encoder(seed=2).fingerprint() != model.fingerprint()


def test_refusals(model):
    with pytest.raises(ConfigError, match="`texts` must hold"):
        model.encode_queries([3])
    with pytest.raises(ConfigError, match="`pooling` must be one of first, mean"):
        PhraseConfig(tiny.BERT, "max")
    with pytest.raises(ConfigError, match="`max_phrase_tokens` must be at least 1"):
        PhraseConfig(tiny.BERT, max_phrase_tokens=0)
    text = TextConfig(8, 14, "{text} {title}")
    other = tfde.PhraseEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer(), text=text)
    with pytest.raises(ConfigError, match="`document_template`"):
        other.reader.read(DOCUMENTS)
