"""Cross-encoders: scoring, saving, and what they refuse; checkpoints are written here."""

import dataclasses
import json

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.model import CrossEncoderConfig, PairTextConfig
from tfde.errors import ConfigError, CorruptError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document, Query

PAIRS = [
    ("red apple", "green pear"),
    ("", "blue"),
    ("cat", ""),
    ("cat dog bird fish " * 9, "horse cow " * 9),
    ("stone", "river lake sea hill " * 4),
]


def cross_encoder(**options) -> CrossEncoder:
    """A cross-encoder with random weights."""
    options.setdefault("seed", 1)
    return CrossEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer(), **options)


@pytest.mark.parametrize("num_labels", [1, 3])
def test_scores_keep_order_whatever_the_batches(num_labels):
    model = cross_encoder(num_labels=num_labels)
    whole = model.score(PAIRS)
    assert whole.dtype == np.float32
    assert whole.shape == ((5,) if num_labels == 1 else (5, 3))
    np.testing.assert_allclose(model.score(PAIRS, batch_size=2), whole, atol=1e-6)
    single = np.concatenate([model.score([pair]) for pair in PAIRS])
    np.testing.assert_allclose(single, whole, atol=1e-6)
    np.testing.assert_allclose(model.score(PAIRS[::-1]), whole[::-1], atol=1e-6)
    assert model.score([]).shape == ((0,) if num_labels == 1 else (0, 3))


def test_a_document_is_its_title_and_text():
    model = cross_encoder(text=PairTextConfig(32, document_template="{title} cat {text}"))
    forms = [
        ("red", Document("1", "apple", "pear")),
        ["red", Document("2", "", "cat pear")],
        ("red", "cat pear"),  # a text has no title
    ]
    as_they_are = [("red", "apple cat pear"), ("red", "cat cat pear"), ("red", "cat cat pear")]
    plain = cross_encoder(text=PairTextConfig(32, document_template="{text}"))
    np.testing.assert_allclose(model.score(forms), plain.score(as_they_are), atol=1e-6)
    assert abs(np.subtract(*model.score(forms)[:2])) > 1e-6


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("red", r"`pairs` must be a list of pairs\. Received: 'red'"),
        (Document("1", "", "red"), r"`pairs` must be a list of pairs\. Received: Document"),
        (["red"], r"`pairs` must hold pairs of two texts.* Received: 'red'"),
        ([("red", None)], r"`pairs` must hold pairs of two texts.* Received: \('red', None\)"),
        ([("a", "b", "c")], r"`pairs` must hold pairs of two texts.* Received: \('a', 'b', 'c'\)"),
        ([Query("1", "red")], r"`pairs` must hold pairs of two texts.* Received: Query"),
    ],
)
def test_what_is_no_pair(pairs, message):
    with pytest.raises(ConfigError, match=message) as error:
        cross_encoder().score(pairs)
    assert "\n" not in str(error.value)


def test_batch_size_is_at_least_1():
    with pytest.raises(ConfigError, match=r"`batch_size` must be at least 1\. Received: 0"):
        cross_encoder().score(PAIRS, batch_size=0)


def test_the_head_follows_its_equation():
    """classifier(tanh(hidden(first token))), in NumPy from the model's weights."""
    model = cross_encoder(num_labels=2)
    token_ids, segment_ids, padding_mask = model.preprocessor.pairs(*zip(*PAIRS, strict=True))
    weights = {k: np.array(v, "float64") for k, v in model._parts.named_weights().items()}
    embedded = model._parts.token_embedder(token_ids, segment_ids)
    first = np.array(model._parts.encoder(embedded, padding_mask), "float64")[:, 0]
    hidden = np.tanh(first @ weights["hidden/kernel"] + weights["hidden/bias"])
    expected = hidden @ weights["classifier/kernel"] + weights["classifier/bias"]
    np.testing.assert_allclose(model.score(PAIRS), expected, atol=1e-5)


def test_segments_and_padding_count_as_they_should():
    model = cross_encoder()
    token_ids, segment_ids, padding_mask = model.preprocessor.pairs(["red"], ["blue"])
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
    expected = model(inputs)
    length = int(tf.reduce_sum(padding_mask))
    removed = model({name: value[:, :length] for name, value in inputs.items()})
    np.testing.assert_allclose(removed, expected, atol=1e-6)
    other = model({**inputs, "segment_ids": tf.zeros_like(segment_ids)})
    assert np.abs(other - expected).max() > 1e-5


def test_dropout_is_on_in_training_only():
    model = cross_encoder(dropout=0.5)
    inputs = dict(
        zip(
            ("token_ids", "segment_ids", "padding_mask"),
            model.preprocessor.pairs(["red"], ["blue"]),
            strict=True,
        )
    )
    assert model.config.dropout == 0.5
    np.testing.assert_array_equal(model(inputs), model(inputs))
    assert np.abs(model(inputs, training=True) - model(inputs, training=True)).max() > 0


def test_keras_trains_every_weight():
    model = cross_encoder(dropout=0.0)
    labels = np.array([0, 1, 0, 1, 1], "float32")
    before = {name: np.array(w) for name, w in model._parts.named_weights().items()}
    model.compile("adam", loss=keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(PAIRS, labels, epochs=1, batch_size=5, verbose=0)
    after = model._parts.named_weights()
    assert len(after) == len(model.trainable_weights) == 5 + 2 * 12 + 4
    assert all(np.abs(after[name] - value).max() > 0 for name, value in before.items())


def test_save_and_reload(tmp_path):
    model = cross_encoder(num_labels=3, text=PairTextConfig(24, buckets=(8, 16)))
    model.save_to_preset(tmp_path / "model")
    again = CrossEncoder.load(tmp_path / "model")
    assert again.config == model.config
    assert again.preprocessor.text_config == model.preprocessor.text_config
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.score(PAIRS), model.score(PAIRS))
    record = json.loads((tmp_path / "model" / "config.json").read_text())
    assert record["class_name"] == "CrossEncoder"
    metadata = json.loads((tmp_path / "model" / "metadata.json").read_text())
    assert metadata["fingerprint"] == model.fingerprint()
    with h5py.File(tmp_path / "model" / "model.weights.h5") as file:
        assert file["classifier/kernel"].shape == (8, 3)
        assert file["encoder/transformer_layer_1/qkv_kernel"].shape == (8, 24)
    model.save_to_preset(tmp_path / "model")  # replaces its own kind
    with pytest.raises(ConfigError, match="is not empty"):
        tiny.dual_encoder().save_to_preset(tmp_path / "model")


def test_half_precision_there_and_back(tmp_path):
    model = cross_encoder(dtype="bfloat16")
    model.save_to_preset(tmp_path)
    again = CrossEncoder.load(tmp_path)
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.score(PAIRS), model.score(PAIRS))
    assert {weight.dtype for weight in again.scorer.weights} == {"bfloat16", "float32"}


def test_fingerprint_changes_with_weights_and_text():
    before = cross_encoder().fingerprint()
    assert cross_encoder().fingerprint() == before
    assert cross_encoder(text=PairTextConfig(31)).fingerprint() != before
    model = cross_encoder()
    model.scorer.weights[-1].assign_add([1e-6])
    assert model.fingerprint() != before


def test_models_of_the_other_class_are_refused(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "dual")
    message = r"of class CrossEncoder is expected\)\. Received: DualEncoder"
    for load in (CrossEncoder.load, CrossEncoder.from_preset):
        with pytest.raises(CorruptError, match=message):
            load(tmp_path / "dual")
    with pytest.raises(ConfigError, match=r"loaded by tfde\.DualEncoder\.from_preset\."):
        CrossEncoder.from_backbone(tmp_path / "dual")
    cross_encoder().save_to_preset(tmp_path / "cross")
    with pytest.raises(CorruptError, match=r"DualEncoder is expected\)\. Received: CrossEncoder"):
        DualEncoder.load(tmp_path / "cross")


def test_a_saved_model_scores_texts(tmp_path):
    model = cross_encoder()
    module = tf.Module()
    module.model = model
    strings = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[strings, strings])
    def score(first, second):
        names = ("token_ids", "segment_ids", "padding_mask")
        inputs = dict(zip(names, model.preprocessor.pairs(first, second), strict=True))
        return model.scorer(inputs)

    module.score = score
    tf.saved_model.save(module, str(tmp_path / "model"))
    again = tf.saved_model.load(str(tmp_path / "model"))
    got = again.score(*zip(*PAIRS, strict=True)).numpy()[:, 0]
    np.testing.assert_allclose(got, model.score(PAIRS), atol=1e-6)


def test_descriptions_need_a_tokenizer_that_fits():
    with pytest.raises(ConfigError, match=r"`tokenizer` is needed when `backbone` is a desc"):
        CrossEncoder.from_backbone(tiny.BERT)
    with pytest.raises(ConfigError, match=r"must be a path, a preset's name, a description"):
        CrossEncoder.from_backbone(42, tokenizer=tiny.tokenizer())
    with pytest.raises(ConfigError, match=r"must be one with Transformer layers, .* BagOfWords"):
        CrossEncoder.from_backbone(tiny.BAG_OF_WORDS, tokenizer=tiny.tokenizer())
    small = dataclasses.replace(tiny.BERT, vocabulary_size=10)
    with pytest.raises(ConfigError, match=r"more than the backbone's vocabulary_size=10"):
        CrossEncoder.from_backbone(small, tokenizer=tiny.tokenizer())


def test_lengths_and_segments_are_cut_to_the_backbone():
    text = cross_encoder(text=PairTextConfig(512)).preprocessor.text_config
    assert (text.max_length_tokens, text.num_segments) == (32, 2)
    one = dataclasses.replace(tiny.BERT, num_segments=1)
    model = CrossEncoder.from_backbone(one, tokenizer=tiny.tokenizer())
    assert model.preprocessor.text_config.num_segments == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_labels", 0, r"`num_labels` must be at least 1\. Received: 0"),
        ("hidden_activation", "gelu", r"`hidden_activation` must be one of tanh, relu\."),
        ("dropout", 1.0, r"`dropout` must be in \[0, 1\)\. Received: 1\.0"),
    ],
)
def test_what_a_description_must_hold(field, value, message):
    with pytest.raises(ConfigError, match=message):
        CrossEncoderConfig(tiny.BERT, **{field: value})
