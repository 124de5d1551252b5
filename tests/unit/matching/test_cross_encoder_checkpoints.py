"""Sequence classification directories, written here with safetensors: what is read and refused."""

import json

import bert_directory
import numpy as np
import pytest
from bert_directory import H

from tfde.config.model import PairTextConfig
from tfde.errors import ConfigError, DataError
from tfde.matching.cross_encoder import CrossEncoder

BERT = {"architectures": ["BertForSequenceClassification"]}


def arrays(num_labels=1):
    rng = np.random.default_rng(7)
    weights = {f"bert.{name}": value for name, value in bert_directory.arrays().items()}
    for name, rows in (("bert.pooler.dense", H), ("classifier", num_labels)):
        weights[f"{name}.weight"] = rng.standard_normal((rows, H)).astype("float32")
        weights[f"{name}.bias"] = rng.standard_normal(rows).astype("float32")
    return weights


def write(directory, *, weights=None, **config):
    bert_directory.write(
        directory, weights=arrays() if weights is None else weights, config={**BERT, **config}
    )


@pytest.mark.parametrize("num_labels", [1, 3])
def test_logits_follow_from_the_arrays(tmp_path, num_labels):
    weights = arrays(num_labels)
    write(tmp_path, weights=weights)
    model = CrossEncoder.load(tmp_path)
    assert model.config.num_labels == num_labels
    token_ids, segment_ids, padding_mask = model.preprocessor.pairs(["a b"], ["c"])
    embedded = model._parts.token_embedder(token_ids, segment_ids)
    first = np.array(model._parts.encoder(embedded, padding_mask))[:, 0]
    hidden = first @ weights["bert.pooler.dense.weight"].T + weights["bert.pooler.dense.bias"]
    expected = np.tanh(hidden) @ weights["classifier.weight"].T + weights["classifier.bias"]
    scores = model.score([("a b", "c")]).reshape(1, -1)
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"0": "no", "1": "yes"}, ("no", "yes")),
        ({"0": "LABEL_0", "1": "LABEL_1"}, ()),
        ({"0": "same", "1": "same"}, ()),
        (None, ()),
    ],
)
def test_labels_are_called_as_in_the_checkpoint(tmp_path, names, expected):
    write(tmp_path / "checkpoint", weights=arrays(2), id2label=names)
    model = CrossEncoder.load(tmp_path / "checkpoint")
    assert model.labels == expected
    model.save_to_preset(tmp_path / "model")
    assert CrossEncoder.load(tmp_path / "model").labels == expected
    renamed = CrossEncoder.from_backbone(tmp_path / "checkpoint", labels=("a", "b"))
    assert renamed.labels == ("a", "b")
    with pytest.raises(ConfigError, match=r"`labels` must be 2 names, none twice"):
        CrossEncoder.from_backbone(tmp_path / "checkpoint", labels=("a",))


def test_names_in_another_order_order_the_logits(tmp_path, caplog):
    write(tmp_path, weights=arrays(3), id2label={"0": "yes", "1": "maybe", "2": "no"})
    pairs = [("a b", "c"), ("b", "a c")]
    logits = CrossEncoder.load(tmp_path).score(pairs)
    ordered = CrossEncoder.from_backbone(tmp_path, labels=("maybe", "no", "yes"))
    np.testing.assert_allclose(ordered.score(pairs), logits[:, [1, 2, 0]], atol=1e-6)
    assert not caplog.text
    renamed = CrossEncoder.from_backbone(tmp_path, labels=("a", "b", "c"))
    np.testing.assert_allclose(renamed.score(pairs), logits, atol=1e-6)
    assert "logits are called yes, maybe, no, and a, b, c from now on" in caplog.text


def test_a_new_head_that_has_learned_nothing_is_told(tmp_path, caplog):
    bert_directory.write(tmp_path)
    model = CrossEncoder.from_backbone(tmp_path, num_labels=1)
    model.score([("a", "b")])
    assert "new head of random weights: train it first" in caplog.text
    caplog.clear()
    trained, loaded = (CrossEncoder.from_backbone(tmp_path, num_labels=1) for _ in range(2))
    trained.compile("adam")
    trained.train_on_batch([("a", "b", 1), ("b", "c", 0)])
    trained.save_weights(tmp_path / "trained.weights.h5")
    loaded.load_weights(tmp_path / "trained.weights.h5")
    assert trained.score([("a", "b")]) == loaded.score([("a", "b")])
    assert not caplog.text


def test_lengths_are_those_of_the_checkpoint(tmp_path):
    write(tmp_path)
    text = CrossEncoder.load(tmp_path).preprocessor.text_config
    assert (text.max_length_tokens, text.num_segments) == (20, 2)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    assert CrossEncoder.load(tmp_path).preprocessor.text_config.max_length_tokens == 16
    longer = CrossEncoder.from_backbone(tmp_path, text=PairTextConfig(512))
    assert longer.preprocessor.text_config.max_length_tokens == 20
    names = '{"model_input_names": ["input_ids", "attention_mask"]}'
    (tmp_path / "tokenizer_config.json").write_text(names)
    assert CrossEncoder.load(tmp_path).preprocessor.text_config.num_segments == 1


def test_dropout_of_the_head(tmp_path):
    write(tmp_path)
    assert CrossEncoder.load(tmp_path).config.dropout == 0.2  # hidden_dropout_prob
    write(tmp_path, classifier_dropout=0.3)
    assert CrossEncoder.load(tmp_path).config.dropout == 0.3
    model = CrossEncoder.from_backbone(tmp_path, dropout=0.0)
    assert model.config.dropout == model.config.backbone.dropout == 0.0


def test_an_encoder_gets_a_new_head_only_when_asked(tmp_path):
    bert_directory.write(tmp_path, config={"architectures": ["BertModel"]})
    with pytest.raises(ConfigError, match=r"holds no classifier; `num_labels` must say .*=None$"):
        CrossEncoder.load(tmp_path)
    model = CrossEncoder.from_backbone(tmp_path, num_labels=2, seed=3)
    assert model.score([("a", "b")]).shape == (1, 2)
    again = CrossEncoder.from_backbone(tmp_path, num_labels=2, seed=3)
    assert again.fingerprint() == model.fingerprint()
    assert model.preprocessor.text_config.num_segments == 2
    bert_directory.write_sentence_transformers(tmp_path / "sentences", new=True)
    assert CrossEncoder.from_backbone(tmp_path / "sentences", num_labels=1).score([]).shape == (0,)


def test_another_number_of_labels_is_refused(tmp_path):
    write(tmp_path, weights=arrays(3))
    with pytest.raises(ConfigError, match=r"`num_labels` must be 3, as many .* Received: 1"):
        CrossEncoder.from_backbone(tmp_path, num_labels=1)
    assert CrossEncoder.from_backbone(tmp_path, num_labels=3).config.num_labels == 3


def truncated(weights):
    del weights["classifier.weight"]


def other_classifier(weights):
    weights["classifier.weight"] = np.zeros((1, H + 1), "float32")


def scalar_classifier(weights):
    weights["classifier.weight"] = np.zeros((), "float32")


def no_pooler(weights):
    del weights["bert.pooler.dense.bias"]


def short_bias(weights):
    weights["classifier.bias"] = np.zeros(2, "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (truncated, r"the weights must hold the array classifier\.weight\."),
        (other_classifier, r"the array classifier\.weight must have shape \(1, 8\).*\(1, 9\)"),
        (scalar_classifier, r"the array classifier\.weight must have shape \(0, 8\)"),
        (no_pooler, r"the weights must hold the array bert\.pooler\.dense\.bias\."),
        (short_bias, r"the array classifier\.bias must have shape \(1,\).*\(2,\)"),
    ],
)
def test_a_damaged_head_is_refused(tmp_path, change, message):
    weights = arrays()
    change(weights)
    write(tmp_path, weights=weights)
    with pytest.raises(DataError, match=message) as error:
        CrossEncoder.load(tmp_path)
    assert "\n" not in str(error.value)


def test_labels_that_config_json_does_not_have(tmp_path):
    write(tmp_path, id2label={"0": "no", "1": "yes"})
    with pytest.raises(DataError, match=r"`id2label` must agree with the array classifier\.weight"):
        CrossEncoder.load(tmp_path)


def test_a_cut_off_file_is_refused(tmp_path):
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"model\.safetensors: must be a whole safetensors file\."):
        CrossEncoder.load(tmp_path)


def test_pickled_weights_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    message = (
        r"pytorch_model\.bin is a pickle.* BertForSequenceClassification\.from_pretrained\(DIR"
    )
    with pytest.raises(ConfigError, match=message):
        CrossEncoder.load(tmp_path)


def test_architectures_that_are_supported(tmp_path):
    write(tmp_path, architectures=["DebertaV2ForSequenceClassification"])
    with pytest.raises(
        ConfigError,
        match=r"architecture must be one of Bert\S+, DistilBert\S+, Roberta\S+, XLMRoberta\S+,"
        r" MPNetForSequenceClassification\. Received: 'DebertaV2ForSequenceClassification'",
    ):
        CrossEncoder.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.LogitScore",
         "path": "1_LogitScore"}], r"must be one Transformer\. Received: .*LogitScore"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"},
         r"`transformer_task` must be sequence-classification\. Received: 'fill-mask'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": "max_length"}}},
         r"`processing_kwargs` must be null\."),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"},
         r"`default_prompt_name` must be null\. Received: 'query'"),
    ],
)  # fmt: skip
def test_modules_and_options_that_change_the_scores(tmp_path, file, value, message):
    write(tmp_path)
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind, "path": ""}]))
    assert CrossEncoder.load(tmp_path).config.num_labels == 1
    (tmp_path / file).write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=message):
        CrossEncoder.load(tmp_path)
