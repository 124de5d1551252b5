"""Our BERT and T5 encoders against keras-hub's, on the same weights, through saved presets."""

import io
import json
import shutil

import h5py
import keras
import keras_hub
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from tfde.backbones.backbone import build_backbone
from tfde.backbones.transformer import distance_buckets
from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.hdf5_file import Hdf5Arrays
from tfde.checkpoints.loading import load_backbone
from tfde.config.backbones import BertConfig, T5Config
from tfde.errors import ConfigError, DataError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
LENGTHS = (1, 9, 40, 23)
BATCH = len(LENGTHS)
SIZES = {
    "vocabulary_size": 31,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
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
    theirs = keras_hub.models.BertBackbone(**SIZES, max_sequence_length=48)
    randomize(theirs)
    theirs.save_to_preset(str(path))
    keras_hub.models.BertTokenizer(VOCABULARY, lowercase=True).save_to_preset(str(path))
    return path, theirs


def make_t5(path, **sizes):
    theirs = keras_hub.models.T5Backbone(**SIZES, key_value_dim=6, **sizes)
    randomize(theirs)
    theirs.save_to_preset(str(path))
    keras_hub.models.T5Tokenizer(sentence_piece()).save_to_preset(str(path))
    return theirs


def t5_activation(name):
    if name == "gelu_tanh":
        return keras_hub.src.utils.keras_utils.gelu_approximate
    return name


@pytest.fixture(scope="module")
def relu_t5(tmp_path_factory):
    path = tmp_path_factory.mktemp("t5_relu")
    return path, make_t5(path, activation="relu", use_gated_activation=False)


@pytest.fixture(scope="module", params=["gelu_tanh", "gelu", "relu"])
def t5(request, tmp_path_factory, relu_t5):
    if request.param == "relu":
        return *relu_t5, "relu"
    path = tmp_path_factory.mktemp(f"t5_{request.param}")
    activation = t5_activation(request.param)
    theirs = make_t5(path, activation=activation, use_gated_activation=True)
    return path, theirs, request.param


def with_fields(source, target, fields):
    """Copies a preset; `None` drops a field of its `config.json`."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    value = json.loads((target / "config.json").read_text())
    value["config"] |= fields
    value["config"] = {k: v for k, v in value["config"].items() if v is not None}
    (target / "config.json").write_text(json.dumps(value))
    return target


def run_bert(theirs, token_ids, mask):
    feed = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": mask}
    return theirs(feed)["sequence_output"].numpy()


def run_t5(theirs, token_ids, mask):
    feed = {
        "encoder_token_ids": token_ids,
        "encoder_padding_mask": mask,
        "decoder_token_ids": token_ids[:, :1],
        "decoder_padding_mask": mask[:, :1],
    }
    return theirs(feed)["encoder_sequence_output"].numpy()


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


@pytest.mark.parametrize(
    ("kind", "epsilon"), [("DistilBert", 1e-12), ("Roberta", 1e-5), ("XLMRoberta", 1e-5)]
)
def test_the_kin_of_bert_equal_keras_hub_at_real_positions(kind, epsilon, tmp_path):
    theirs = getattr(keras_hub.models, f"{kind}Backbone")(**SIZES, max_sequence_length=48)
    randomize(theirs)
    theirs.save_to_preset(str(tmp_path / "one"))
    theirs.save_to_preset(str(tmp_path / "shards"), max_shard_size=3e-6)
    token_ids, mask = token_ids_and_mask()
    real = mask.astype(bool)
    expected = theirs({"token_ids": token_ids, "padding_mask": mask}).numpy()[real]
    for name in ("one", "shards"):
        # A tokenizer of another kind: only the backbone counts here.
        keras_hub.models.BertTokenizer(VOCABULARY).save_to_preset(str(tmp_path / name))
        loaded = load_backbone(tmp_path / name)
        ours = run_ours(loaded.backbone, token_ids, mask)
        np.testing.assert_allclose(ours[real], expected, atol=1e-5)
    config = BertConfig(
        **SIZES,
        max_sequence_length=48,
        num_segments=0,
        activation="gelu",
        layer_norm_epsilon=epsilon,
    )
    assert loaded.backbone.config == config
    assert loaded.max_length_tokens == 48


def test_t5_beyond_the_largest_relative_distance(relu_t5):
    path, theirs = relu_t5
    token_ids, mask = token_ids_and_mask(300, (300, 250))
    ours = run_ours(load_backbone(path).backbone, token_ids, mask)
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
    expected = theirs.token_embedding.embeddings.value
    table = load_backbone(tmp_path).backbone.token_embedder.token_table
    np.testing.assert_array_equal(table.numpy(), tf.cast(expected, tf.float32))
    table = load_backbone(tmp_path, dtype="bfloat16").backbone.token_embedder.token_table
    assert table.dtype == "bfloat16"
    np.testing.assert_array_equal(table.numpy(), expected)
    arrays = Hdf5Arrays(CheckpointFiles(tmp_path))
    assert arrays.read("layers/reversible_embedding/vars/0").dtype == "bfloat16"


def test_quantised_weights_are_refused(tmp_path, relu_t5):
    path, _ = relu_t5
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        name = "layers/reversible_embedding/vars/0"
        value = file[name][()].astype("int8")
        del file[name]
        file[name] = value
    with pytest.raises(DataError, match=r"reversible_embedding/vars/0 must have a dtype of .*int8"):
        load_backbone(tmp_path)


def test_only_the_encoder_is_read(tmp_path, relu_t5):
    path, theirs = relu_t5
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        for name in ("t5_transformer_layer_2", "t5_transformer_layer_3", "t5_layer_norm_1"):
            del file["layers"][name]
    token_ids, mask = token_ids_and_mask()
    ours = run_ours(load_backbone(tmp_path).backbone, token_ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(ours[real], run_t5(theirs, token_ids, mask)[real], atol=1e-5)


def test_a_missing_or_misshapen_array_is_named(tmp_path, relu_t5):
    shutil.copytree(relu_t5[0], tmp_path, dirs_exist_ok=True)
    name = "layers/t5_transformer_layer_1/output_projector/vars/0"
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        del file[name]
        file[name] = np.zeros((3, 8), "float32")
    with pytest.raises(DataError, match=rf"{name} must have shape \(12, 8\), .*\(3, 8\)"):
        load_backbone(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        del file[name]
    with pytest.raises(DataError, match=f"weights must hold the array {name}"):
        load_backbone(tmp_path)


def test_bad_presets_are_refused_in_one_line(tmp_path, bert):
    path, _ = bert
    config = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"must hold model.weights.h5. Received: no such file"):
        load_backbone(tmp_path)
    weights = (path / "model.weights.h5").read_bytes()
    for damaged in (b"not HDF5", weights[: len(weights) // 2], b""):
        (tmp_path / "model.weights.h5").write_bytes(damaged)
        with pytest.raises(DataError, match=r"model.weights.h5: must be a whole HDF5 file\.") as e:
            load_backbone(tmp_path)
        assert "\n" not in str(e.value)
    (tmp_path / "model.weights.h5").write_bytes(weights)
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json. Received: no such file"):
        load_backbone(tmp_path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    for wrong, rule in (
        ({"class_name": "GPT2Tokenizer"}, r"`class_name` must be one of BertTokenizer, .*GPT2T"),
        ({"config": {"lowercase": "yes"}}, r"`lowercase` must be true or false. Received: 'yes'"),
        ({"config": {"oov_token": "<unk>"}}, r"`oov_token` must be \[UNK\]. Received: '<unk>'"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, **wrong}))
        with pytest.raises(ConfigError, match=rf"tokenizer.json: {rule}"):
            load_backbone(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
    vocabulary = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.parent.mkdir(parents=True)
    vocabulary.write_bytes(b"[PAD]\n\xff")
    with pytest.raises(DataError, match=r"vocabulary.txt: must be UTF-8"):
        load_backbone(tmp_path)
    vocabulary.write_text("[PAD]\n[UNK]")
    with pytest.raises(ConfigError, match=r"vocabulary.txt: `vocabulary` must hold the `start_"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "class_name": "GPT2Backbone"}))
    supported = "BertBackbone, DistilBertBackbone, RobertaBackbone, XLMRobertaBackbone, T5Backbone"
    with pytest.raises(ConfigError, match=rf"must be one of {supported}. Received: 'GPT2Backbone'"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "config": 3}))
    with pytest.raises(ConfigError, match=r"must hold the object `config`. Received: 3"):
        load_backbone(tmp_path)


BERT_LIES = [
    ({"num_heads": None}, r"has no field 'num_heads'"),
    ({"num_heads": "two"}, r"`num_heads` must be a whole number of at least 1. Received: 'two'"),
    ({"num_heads": 3}, r"`num_heads` must be a divisor of `hidden_dim`=8. Received: 3"),
    ({"dropout": [0.1]}, r"`dropout` must be a number .* Received: \[0.1\]"),
    (
        {"vocabulary_size": 10**12},
        r"vars/0 must have shape \(1000000000000, 8\), config.json's"
        r" \(vocabulary_size, hidden_dim\)\. Received: \(31, 8\)",
    ),
    ({"max_sequence_length": 47}, r"must have shape \(47, 8\).* Received: \(48, 8\)"),
    ({"num_segments": 3}, r"must have shape \(3, 8\).* Received: \(2, 8\)"),
    ({"num_heads": 4}, r"query_dense/vars/0 must have shape \(8, 4, 2\).*\(8, 2, 4\)"),
    ({"intermediate_dim": 13}, r"must have shape \(8, 13\).* Received: \(8, 12\)"),
    ({"num_layers": 1}, r"`num_layers` must agree with the weights, which hold 2 layers.* 1"),
    ({"num_layers": 3}, r"`num_layers` must agree with the weights, which hold 2 layers.* 3"),
]


@pytest.mark.parametrize(("lie", "rule"), BERT_LIES)
def test_a_bert_config_that_lies_is_refused_before_memory_is_taken(lie, rule, tmp_path, bert):
    with pytest.raises((ConfigError, DataError), match=rule):
        load_backbone(with_fields(bert[0], tmp_path, lie))


T5_LIES = [
    ({"num_layers": 1}, r"`num_layers` must agree with the weights, which hold 2 layers.* 1"),
    # The decoder's layers, which come next, would have the right shapes.
    ({"num_layers": 3}, r"`num_layers` must agree with the weights, which hold 2 layers.* 3"),
    ({"num_heads": 3}, r"must have shape \(32, 3\), .*\(relative_buckets, num_heads\)"),
    ({"key_value_dim": 4}, r"\(8, 8\), config.json's \(hidden_dim, num_heads \* key_value_dim\)"),
    ({"use_gated_activation": "no"}, r"`use_gated_activation` must be true or false"),
    ({"activation": "tanh"}, r"`activation` must be one of gelu, gelu_approximate, relu"),
]


@pytest.mark.parametrize(("lie", "rule"), T5_LIES)
def test_a_t5_config_that_lies_is_refused(lie, rule, tmp_path, relu_t5):
    with pytest.raises((ConfigError, DataError), match=rule):
        load_backbone(with_fields(relu_t5[0], tmp_path, lie))


def test_a_t5_config_that_lies_about_gates_is_refused(tmp_path, t5):
    path, _, activation = t5
    gated = activation != "relu"
    rule = (
        r"`use_gated_activation` must agree with the weights, which have a gate_projector"
        if gated
        else r"must hold the array layers/t5_transformer_layer/gate_projector/vars/0"
    )
    with pytest.raises(DataError, match=rule):
        load_backbone(with_fields(path, tmp_path, {"use_gated_activation": not gated}))


def test_damaged_shards_are_refused(tmp_path, bert):
    _, theirs = bert
    theirs.save_to_preset(str(tmp_path), max_shard_size=3e-6)
    keras_hub.models.BertTokenizer(VOCABULARY).save_to_preset(str(tmp_path))
    shard = tmp_path / "model_00001.weights.h5"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"model_00001.weights.h5: must be a whole HDF5 file"):
        load_backbone(tmp_path)
    shard.unlink()
    with pytest.raises(ConfigError, match=r"must hold model_00001.weights.h5"):
        load_backbone(tmp_path)
    index = json.loads((tmp_path / "model.weights.json").read_text())
    group = "/layers/position_embedding/vars"
    for wrong in ("../weights.h5", 3, [None]):
        index["weight_map"][group] = wrong
        (tmp_path / "model.weights.json").write_text(json.dumps(index))
        with pytest.raises(ConfigError, match=r"`weight_map` must name files beside it"):
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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_gradients_equal_keras_hub(kind, training, bert, relu_t5):
    """Of the loss sum(real outputs * fixed weights), at arrays from both ends of the graph.

    Training has gradients of its own in place of those that TensorFlow derives; dropout is off.
    """
    if kind == "bert":
        path, theirs = bert
        inputs = ("token_ids", "padding_mask", "sequence_output")
    else:
        path, theirs = relu_t5
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
    ours = load_backbone(path, dropout=0.0).backbone
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(theirs(feed)[inputs[2]] * weights)
    their_table = theirs.token_embedding.embeddings.value
    layers = theirs.transformer_layers if kind == "bert" else theirs.encoder_transformer_layers
    attention = layers[0]._self_attention_layer if kind == "bert" else layers[0].self_attention
    projector = attention._value_dense if kind == "bert" else attention.value_projector
    expected = tape.gradient(loss, [their_table, projector.kernel.value])
    with tf.GradientTape() as tape:
        x = ours.token_embedder(token_ids, training=training)
        x = ours.encoder(x, mask, training=training)
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
