"""Keras models that a program holds as towers: keras-hub's backbones, and any functional one."""

import keras
import keras_hub
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.backbones import BertConfig
from tfde.data.pairs.dataset import pairs
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.saved_models import QueryEncoder, save_encoder

TEXTS = ["red apple", "blue plum cat", "zzz"]
SIZES = {
    "vocabulary_size": 120,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 32,
}


def own_model(names=("token_ids", "padding_mask"), dim=8):
    keras.utils.set_random_seed(1)
    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in names)
    x = keras.layers.Embedding(120, dim, name="table")(ids)
    x = keras.layers.Conv1D(dim, 3, padding="same", name="first")(x)
    x = keras.layers.Conv1D(dim, 3, padding="same", activation="tanh", name="second")(x)
    x = keras.layers.Multiply()([x, keras.ops.cast(mask, "float32")[:, :, None]])
    return keras.Model({"token_ids": ids, "padding_mask": mask}, x)


def own_mean(model, dual_encoder):
    """Mean of the real tokens, unit norm: what the towers are, by the model alone."""
    ids, mask = dual_encoder.preprocessor.queries(tf.constant(TEXTS))[:2]
    inputs = {"token_ids": ids, "padding_mask": mask}
    if "segment_ids" in model.input:
        inputs["segment_ids"] = tf.zeros_like(ids)
    output = model(inputs)
    if isinstance(output, dict):
        output = output["sequence_output"]
    weights = np.asarray(mask, "float64")[:, :, None]
    mean = (np.asarray(output, "float64") * weights).sum(1) / weights.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["BertBackbone", "AlbertBackbone"])
def test_a_backbone_of_keras_hub_gives_what_it_gave(name, tmp_path):
    more = {"embedding_dim": 8} if name == "AlbertBackbone" else {}
    backbone = getattr(keras_hub.models, name)(**SIZES, **more)
    model = DualEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer())
    expected = own_mean(backbone, model)
    np.testing.assert_allclose(model.encode_queries(TEXTS), expected, atol=1e-5)
    # BERT becomes one of ours; ALBERT, which is none, stays what it is.
    assert isinstance(model.config.backbone, BertConfig) is (name == "BertBackbone")
    assert model.config.backbone.max_sequence_length == 32
    model.save_to_preset(tmp_path / "model")
    again = DualEncoder.from_preset(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_allclose(again.encode_queries(TEXTS), expected, atol=1e-5)


def test_a_functional_model_trains_and_exports(tmp_path):
    network = own_model()
    model = DualEncoder.from_backbone(network, tokenizer=tiny.tokenizer(), embedding_dim=8, seed=1)
    data = tiny.write_dataset(tmp_path / "data", documents=64)
    before = network.get_weights()
    model.compile(keras.optimizers.Adam(0.03), task=RetrievalTask(0.1))
    history = model.fit(pairs(data, batch_size=16), epochs=10, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    for ours, theirs in zip(before, network.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)  # the model that was given stays as it was
    save_encoder(QueryEncoder(model.query_tower, model.preprocessor), tmp_path / "q")
    exported = tf.saved_model.load(str(tmp_path / "q")).signatures["serving_default"]
    found = exported(text=tf.constant(TEXTS))["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)


def test_towers_of_their_own_start_alike():
    network = own_model()
    model = DualEncoder.from_backbone(network, tokenizer=tiny.tokenizer(), sharing="ade")
    names = set(model.towers.named_weights())
    rest = [f"{layer}/{weight}" for layer in ("first", "second") for weight in ("kernel", "bias")]
    expected = set()
    for side in ("query", "document"):
        expected |= {f"encoder/{side}/{weight}" for weight in rest}
        expected.add(f"token_embedder/{side}/table/embeddings")
    assert names == expected
    for tower in (model.query_tower, model.document_tower):
        for ours, theirs in zip(tower.get_weights(), network.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_cross_encoder_on_a_backbone_of_keras_hub():
    backbone = keras_hub.models.BertBackbone(**SIZES)
    model = CrossEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer())
    assert model.preprocessor.text_config.num_segments == 2
    table = backbone.get_layer("token_embedding").embeddings
    np.testing.assert_array_equal(model.named_weights()["token_embedder/token_table"], table)
    with pytest.raises(ConfigError, match=r"`backbone` must be one with Transformer layers"):
        CrossEncoder.from_backbone(own_model(), tokenizer=tiny.tokenizer())


def test_keras_nlp_is_the_former_name_of_keras_hub():
    theirs = keras_nlp.tokenizers.BertTokenizer(tiny.VOCABULARY, lowercase=True)
    backbone = keras_nlp.models.BertBackbone(**SIZES)
    model = DualEncoder.from_backbone(backbone, tokenizer=theirs)
    same = DualEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer())
    np.testing.assert_array_equal(model.encode_queries(["red"]), same.encode_queries(["red"]))


def test_a_tokenizer_of_keras_hub():
    theirs = keras_hub.tokenizers.BertTokenizer(tiny.VOCABULARY, lowercase=True)
    model = DualEncoder.from_backbone(own_model(), tokenizer=theirs)
    ids = model.preprocessor.tokenizer.tokenize(TEXTS).to_list()
    assert ids == [list(map(int, row)) for row in theirs(TEXTS)]


def test_what_is_no_backbone():
    def refused(backbone, message, **options):
        with pytest.raises(ConfigError, match=message):
            DualEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer(), **options)

    refused(42, r"`backbone` must be a path, .*or a Keras model. Received: 42")
    refused(own_model(), r"`dropout` is the model's own", dropout=0.5)
    named = own_model(("a", "b"))
    refused(keras.Model([*named.inputs], named.output), r"inputs are called token_ids, .* '[ab]'")
    refused(keras.Sequential([keras.layers.Dense(2)]), r"`backbone` must be a functional Keras")
    model = own_model()
    pooled = keras.layers.GlobalAveragePooling1D()(model.output)
    refused(keras.Model(model.input, pooled), r"must give a vector a token.*\(None, 8\)")
    refused(keras.Model(model.input, {"x": pooled}), r"must give sequence_output .*Received: x")
    with pytest.raises(ConfigError, match=r"`tokenizer` is needed when `backbone` is a desc"):
        DualEncoder.from_backbone(own_model())
    with pytest.raises(ConfigError, match=r"`tokenizer` must be one of tfde or of keras-hub"):
        DualEncoder.from_backbone(own_model(), tokenizer="words")
