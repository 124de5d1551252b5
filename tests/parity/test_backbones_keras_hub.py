"""Our BERT and T5 encoders against keras-hub's, on the same weights, through saved presets."""

import io
import json

import h5py
import keras
import keras_hub
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from tfde.backbones.backbone import build_backbone
from tfde.checkpoints.loading import load_backbone
from tfde.backbones.relative_positions import distance_buckets
from tfde.config import BertConfig, T5Config
from tfde.errors import ConfigError, DataError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
LENGTHS = (1, 9, 40, 23)
BATCH = len(LENGTHS)
LENGTH = max(LENGTHS)


def token_ids_and_mask(length=LENGTH, lengths=LENGTHS, vocabulary_size=31):
    rng = np.random.default_rng(5)
    token_ids = rng.integers(0, vocabulary_size, (len(lengths), length)).astype("int32")
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype("int32")
    return token_ids, mask


def randomize(model):
    """Moves every weight off its initial value: zeros and ones would hide a swapped array."""
    rng = np.random.default_rng(11)
    for variable in model.weights:
        variable.assign(variable + 0.2 * rng.standard_normal(variable.shape))


def sentence_piece():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over the lazy dog"] * 20),
        model_writer=out,
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return out.getvalue()


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    theirs = keras_hub.models.BertBackbone(
        vocabulary_size=31,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        max_sequence_length=48,
    )
    randomize(theirs)
    theirs.save_to_preset(str(path))
    keras_hub.models.BertTokenizer(VOCABULARY, lowercase=True).save_to_preset(str(path))
    return path, theirs


def make_t5(path, **sizes):
    theirs = keras_hub.models.T5Backbone(
        vocabulary_size=31,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        key_value_dim=6,
        **sizes,
    )
    randomize(theirs)
    theirs.save_to_preset(str(path))
    keras_hub.models.T5Tokenizer(sentence_piece()).save_to_preset(str(path))
    return theirs


def t5_activation(name):
    if name == "gelu_tanh":
        return keras_hub.src.utils.keras_utils.gelu_approximate
    return name


@pytest.fixture(scope="module", params=["gelu_tanh", "gelu", "relu"])
def t5(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(f"t5_{request.param}")
    gated = request.param != "relu"
    activation = t5_activation(request.param)
    theirs = make_t5(path, activation=activation, use_gated_activation=gated)
    return path, theirs, request.param


def run_bert(theirs, token_ids, mask):
    return theirs.predict_on_batch(
        {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": mask}
    )["sequence_output"]


def run_t5(theirs, token_ids, mask):
    return theirs.predict_on_batch(
        {
            "encoder_token_ids": token_ids,
            "encoder_padding_mask": mask,
            "decoder_token_ids": token_ids[:, :1],
            "decoder_padding_mask": mask[:, :1],
        }
    )["encoder_sequence_output"]


def run_ours(backbone, token_ids, mask):
    return backbone.encoder(backbone.token_embedder(token_ids), mask).numpy()


def test_bert_equals_keras_hub_at_real_positions(bert):
    path, theirs = bert
    token_ids, mask = token_ids_and_mask()
    loaded = load_backbone(path)
    ours = run_ours(loaded.backbone, token_ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(ours[real], run_bert(theirs, token_ids, mask)[real], atol=1e-5)
    assert loaded.max_length_tokens == 48
    assert loaded.tokenizer.vocabulary_size == 31
    assert loaded.backbone.config.activation == "gelu_tanh"


def test_t5_equals_keras_hub_at_real_positions(t5):
    path, theirs, activation = t5
    token_ids, mask = token_ids_and_mask()
    loaded = load_backbone(path)
    assert loaded.backbone.config.activation == activation
    ours = run_ours(loaded.backbone, token_ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(ours[real], run_t5(theirs, token_ids, mask)[real], atol=1e-5)
    assert loaded.max_length_tokens is None
    assert loaded.tokenizer.tokenize(["the lazy dog"]).shape[0] == 1


def test_t5_beyond_the_largest_relative_distance(tmp_path):
    theirs = make_t5(tmp_path, activation="relu", use_gated_activation=False)
    token_ids, mask = token_ids_and_mask(300, (300, 250))
    ours = run_ours(load_backbone(tmp_path).backbone, token_ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(ours[real], run_t5(theirs, token_ids, mask)[real], atol=1e-5)


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (32, 200)])
def test_buckets_equal_keras_hub(buckets, max_distance):
    attention = keras_hub.src.models.t5.t5_multi_head_attention.T5MultiHeadAttention
    distance = np.arange(2 * max_distance)
    theirs = attention._relative_position_bucket(
        -distance, bidirectional=True, num_buckets=buckets, max_distance=max_distance
    )
    ours = distance_buckets(buckets // 2, max_distance)
    np.testing.assert_array_equal(ours[np.minimum(distance, max_distance)], theirs)


def test_sharded_weights_and_a_task_preset(tmp_path, bert):
    _, theirs = bert
    token_ids, mask = token_ids_and_mask()
    tokenizer = keras_hub.models.BertTokenizer(VOCABULARY, lowercase=True)
    sharded = tmp_path / "sharded"
    theirs.save_to_preset(str(sharded), max_shard_size=3e-6)
    tokenizer.save_to_preset(str(sharded))
    assert not (sharded / "model.weights.h5").exists()
    assert len(list(sharded.glob("model_*.weights.h5"))) > 1
    task = tmp_path / "task"
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=24)
    keras_hub.models.BertTextClassifier(
        theirs, num_classes=2, preprocessor=preprocessor
    ).save_to_preset(str(task))
    expected = run_bert(theirs, token_ids, mask)[mask.astype(bool)]
    for path, limit in ((sharded, 48), (task, 24)):
        loaded = load_backbone(path)
        ours = run_ours(loaded.backbone, token_ids, mask)
        np.testing.assert_allclose(ours[mask.astype(bool)], expected, atol=1e-5)
        assert loaded.max_length_tokens == limit


def test_a_bfloat16_preset_gives_the_same_values(tmp_path):
    theirs = keras_hub.models.BertBackbone(
        vocabulary_size=31,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        dtype="bfloat16",
    )
    theirs.save_to_preset(str(tmp_path))
    keras_hub.models.BertTokenizer(VOCABULARY).save_to_preset(str(tmp_path))
    embedder = load_backbone(tmp_path).backbone.token_embedder
    expected = tf.cast(theirs.token_embedding.embeddings.value, tf.float32)
    np.testing.assert_array_equal(embedder.token_table.numpy(), expected)


def test_only_the_encoder_is_read(tmp_path):
    theirs = make_t5(tmp_path, activation="relu", use_gated_activation=False)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        for name in ("t5_transformer_layer_2", "t5_transformer_layer_3", "t5_layer_norm_1"):
            del file["layers"][name]
    token_ids, mask = token_ids_and_mask()
    ours = run_ours(load_backbone(tmp_path).backbone, token_ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(ours[real], run_t5(theirs, token_ids, mask)[real], atol=1e-5)


def test_a_missing_or_misshapen_array_is_named(tmp_path):
    make_t5(tmp_path, activation="relu", use_gated_activation=False)
    name = "layers/t5_transformer_layer_1/output_projector/vars/0"
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        del file[name]
        file[name] = np.zeros((3, 8), "float32")
    with pytest.raises(DataError, match=rf"{name} must have shape \(12, 8\). Received: \(3, 8\)"):
        load_backbone(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        del file[name]
    with pytest.raises(DataError, match=f"weights must hold the array {name}"):
        load_backbone(tmp_path)


def test_bad_presets_are_refused_in_one_line(tmp_path, bert):
    path, _ = bert
    config = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json. Received: no such file"):
        load_backbone(tmp_path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["class_name"] = "GPT2Tokenizer"
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"must be a T5Tokenizer or a BertTokenizer.*GPT2"):
        load_backbone(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
    vocabulary = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.parent.mkdir(parents=True)
    vocabulary.write_text("\n".join(VOCABULARY))
    with pytest.raises(ConfigError, match=r"must hold model.weights.h5. Received: no such file"):
        load_backbone(tmp_path)
    (tmp_path / "model.weights.h5").write_bytes(b"not HDF5")
    with pytest.raises(DataError, match=r"model.weights.h5: must be an HDF5 file"):
        load_backbone(tmp_path)
    config["class_name"] = "GPT2Backbone"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"must be T5Backbone or BertBackbone.*GPT2Backbone"):
        load_backbone(tmp_path)
    config["class_name"] = "BertBackbone"
    del config["config"]["num_heads"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config.json: has no field 'num_heads'"):
        load_backbone(tmp_path)


def test_parameter_counts_equal_keras_hub():
    """keras-hub's BERT has a pooler besides, its T5 a decoder; E and T are counted by hand."""
    bert = build_backbone(BertConfig(31, 2, 2, 8, 12, 48))
    theirs = keras_hub.models.BertBackbone(31, 2, 2, 8, 12, max_sequence_length=48)
    pooler = 8 * 8 + 8
    ours = bert.token_embedder.count_params() + bert.encoder.count_params()
    assert ours == theirs.count_params() - pooler
    t5 = build_backbone(T5Config(31, 2, 2, 8, 12, 6))
    layer = 4 * 8 * 12 + 3 * 8 * 12 + 2 * 8
    assert t5.token_embedder.count_params() == 31 * 8
    assert t5.encoder.count_params() == 2 * layer + 32 * 2 + 8


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_gradients_equal_keras_hub(kind, bert, tmp_path):
    """Of the loss sum(real outputs * fixed weights), at arrays from both ends of the graph."""
    if kind == "bert":
        path, theirs = bert
        inputs = ("token_ids", "padding_mask", "sequence_output")
    else:
        path, theirs = tmp_path, make_t5(tmp_path, activation="relu", use_gated_activation=False)
        inputs = ("encoder_token_ids", "encoder_padding_mask", "encoder_sequence_output")
    token_ids, mask = token_ids_and_mask()
    weights = np.random.default_rng(2).standard_normal((BATCH, LENGTH, 8)) * mask[:, :, None]
    weights = weights.astype("float32")
    feed = {inputs[0]: token_ids, inputs[1]: mask}
    feed |= (
        {"segment_ids": np.zeros_like(token_ids)}
        if kind == "bert"
        else {"decoder_token_ids": token_ids[:, :1], "decoder_padding_mask": mask[:, :1]}
    )
    ours = load_backbone(path).backbone
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(theirs(feed)[inputs[2]] * weights)
    their_table = theirs.token_embedding.embeddings.value
    layers = theirs.transformer_layers if kind == "bert" else theirs.encoder_transformer_layers
    attention = layers[0]._self_attention_layer if kind == "bert" else layers[0].self_attention
    projector = attention._value_dense if kind == "bert" else attention.value_projector
    expected = tape.gradient(loss, [their_table, projector.kernel.value])
    with tf.GradientTape() as tape:
        x = ours.encoder(ours.token_embedder(token_ids), mask)
        loss = tf.reduce_sum(x * weights)
    first = ours.encoder.transformer_layers[0]
    got = tape.gradient(loss, [ours.token_embedder.token_table.value, first.qkv_kernel.value])
    scale = float(tf.reduce_max(tf.abs(expected[1])))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(tf.convert_to_tensor(got[0])),
        tf.convert_to_tensor(expected[0]),
        atol=1e-4 * scale,
    )
    size = got[1].shape[1] // 3
    value_gradient = tf.reshape(expected[1], (8, size))
    np.testing.assert_allclose(got[1][:, 2 * size :], value_gradient, atol=1e-4 * scale)
